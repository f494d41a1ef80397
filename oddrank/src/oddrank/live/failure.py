"""The error of a failed call: the culprit rank and its source lines first, then where every other rank stood."""

from __future__ import annotations

import itertools
import linecache
import pickle
import re
import signal
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from oddrank.live.introspect import SHOWN, Collective, aside
from oddrank.live.messages import Message, circle
from oddrank.live.stacks import is_bottom, is_hidden, is_library, is_ours, place

MEMBERS = 8  # exceptions of a group that are shown
PERIOD = 12  # lines that a recursion goes round in
UNFOLDED = 8  # library frames that are shown where ranks differ only in these
LOOP = 64  # collectives that a loop goes round in
SHORT = 8  # letters of a group's name, which may be a hash
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

# how an exception travels to another process, and is one again there; ranks that a kernel starts know more than pickle
travel: tuple[Callable[[Any], bytes], Callable[[bytes], Any]] = (pickle.dumps, pickle.loads)

# what a rank reports when a peer left a collective: a consequence, not the cause
PEER_GONE = 3  # its place in the order
_GONE = ("closed by peer", "connection reset", "broken pipe", "connection closed", "is gone")


@dataclass
class Outcome:
    """How one rank's part of a call ended.

    Attributes:
        rank: The rank.
        kind: 'ok', 'error', 'unpicklable' (its result cannot travel), 'dead' or 'unfinished'.
        type: The type of its exception.
        message: The exception's text with its notes, or what else is known of the end.
        frames: Its stack, outermost frame first: (place, source line, whether it is library code).
        code: The exit code of its process, negative for a signal.
        exception: The pickled exception, if it could travel.
        waits: The collective or store wait that it stands in, or ''.
        collectives: Its last collectives; None if it said nothing about them.
        members: The exceptions of an exception group.
        compiling: Whether it stands in a compile.
        sends: The message that it waits in: 'send' or 'recv', and the other rank.
        choices: The last branches that it took by a value, where they were noted (`oddrank.look.choices`).
    """

    rank: int
    kind: str
    type: str = ""
    message: str = ""
    frames: list[tuple[str, str, bool]] = field(default_factory=list)
    code: int | None = None
    exception: bytes | None = None
    waits: str = ""
    collectives: list[Collective] | None = None
    members: list[Outcome] = field(default_factory=list)
    compiling: bool = False
    sends: Message | None = None
    choices: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Outcome:
        """Describe an exception of the reader's code as plain data, whatever it is like.

        Args:
            rank: The rank that raised it.
            error: The exception; it travels along where it can be pickled.
        """
        outcome = cls._described(rank, error)
        with suppress(Exception):
            outcome.exception = travel[0](error.with_traceback(None))
        return outcome

    @classmethod
    def _described(cls, rank: int, error: BaseException) -> Outcome:
        trace = traceback.TracebackException.from_exception(error, compact=True)
        frames = [
            (place(f.filename, f.lineno or 0, f.name), (f.line or "").strip(), is_library(f.filename))
            for f in trace.stack
            if not is_hidden(f.filename) and not f.filename.startswith("<frozen")
        ]
        text = message_of(error)
        if isinstance(error, SyntaxError):
            text = "".join(trace.format_exception_only()).strip()
        notes = getattr(error, "__notes__", ())
        said = [text, *(n for n in notes if isinstance(n, str))] if isinstance(notes, list) else [text]
        group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        return cls(
            rank,
            "error",
            type(error).__name__,
            "\n".join(said).strip(),
            frames,
            members=[cls._described(rank, member) for member in group],
        )

    @property
    def order(self) -> int:
        """Its place in the error: a dead process, then an error of its own, then what follows from a peer's end."""
        if self.kind == "dead":
            return 0
        if self.kind in ("error", "unpicklable"):
            if self.type == "KeyboardInterrupt":
                return 4
            return PEER_GONE if any(words in self.message.lower() for words in _GONE) else 1
        return 4 if self.kind == "unfinished" else 5

    def describe(self, who: str = "") -> str:
        """Return a paragraph about this rank, or about `who` if several ended alike, with source lines."""
        who = who or f"rank {self.rank}"
        if self.kind == "ok":
            return f"{who} finished its part."
        if self.kind == "dead":
            died = f"{who} died: {self.message or how_it_ended(self.code)}"
            return f"{died}, here:\n{stack(self.frames)}" if self.frames else f"{died}."
        if self.kind == "unpicklable":
            return f"{who} finished, but its result cannot travel back to the kernel: {self.message}"
        if self.kind == "unfinished":
            if not self.frames:
                return f"{who} was {self.message}."
            doing = (
                f"was waiting in {self.waits}" if self.waits else "was compiling" if self.compiling else "was"
            )
            return f"{who} {doing} here:\n{stack(self.frames)}"
        return f"{who} raised {self._raised()}"

    def _raised(self) -> str:
        """The exception, its lines, and the exceptions in it where it is a group."""
        lines = [f"{self.type}: {self.message}" if self.message else self.type]
        lines += [stack(self.frames)] if self.frames else []
        for number, member in enumerate(self.members[:MEMBERS], 1):
            lines.append(textwrap.indent(f"{number}. {member._raised()}", "    "))
        if len(self.members) > MEMBERS:
            lines.append(f"    ... {len(self.members) - MEMBERS} more exceptions")
        return "\n".join(lines)

    def describe_collectives(self, who: str = "") -> str:
        """Return the last collectives of this rank (or of `who`), a line each; '' if it said nothing about them."""
        who = who or f"rank {self.rank}"
        if self.collectives is None:
            return ""
        if not self.collectives:
            return "" if self.sends else f"{who} has called no collective."
        last = self.collectives[-SHOWN:]
        groups = {(c.group, c.ranks) for c in self.collectives}
        several = len({name for name, _ in groups}) > 1  # each group counts from 1
        alike = Counter(ranks for _, ranks in groups)
        lines = []
        for c in last:
            among = f", among ranks {_in_words(c.ranks)}" if several and c.ranks else ""
            among += f" (group {c.group[:SHORT]})" if several and alike[c.ranks] > 1 else ""
            lines.append(f"    {c.number}  {c.describe()}{among}{'' if c.ended else '  (not finished)'}")
        return "\n".join([f"last collectives of {who}:", *lines])


def message_of(error: BaseException) -> str:
    """Return the text of an exception, or why it has none.

    >>> message_of(KeyError("lost"))
    "'lost'"
    """
    try:
        return str(error)
    except Exception as inner:
        return f"(no text: its __str__ raised {type(inner).__name__})"


def paragraphs(outcomes: Sequence[Outcome], describe: Callable[..., str] = Outcome.describe) -> list[str]:
    """Return what `describe` says of every rank, in one paragraph for ranks of which it says the same.

    Args:
        outcomes: How each rank's part of the call ended.
        describe: Gives the paragraph of an Outcome; called with it and with the ranks in words.
    """
    alike: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        alike.setdefault(describe(_without_numbers(outcome), "it"), []).append(outcome)
    return [
        "\n".join(
            [
                describe(same[0], name_all([o.rank for o in same])),
                *(_unlike(same) if describe is Outcome.describe else []),
            ]
        )
        for text, same in alike.items()
        if text
    ]


def _without_numbers(outcome: Outcome) -> Outcome:
    """The same outcome, alike for errors that differ only in the numbers of their text."""
    return replace(outcome, message=_NUMBER.sub("#", outcome.message)) if outcome.kind == "error" else outcome


def _unlike(same: Sequence[Outcome]) -> list[str]:
    """What the first error does not say of the other ranks: their first line with other numbers."""
    first, ranks = same[0].message.splitlines(), {}  # type: list[str], dict[str, list[int]]
    for outcome in same[1:]:
        other = [mine for mine, line in zip(outcome.message.splitlines(), first, strict=True) if mine != line]
        if other:
            more = len(other) - 1
            said = (
                f"{other[0]} ({more} more line{'s' * (more > 1)} differ{'s' * (more == 1)})"
                if more
                else other[0]
            )
            ranks.setdefault(said, []).append(outcome.rank)
    return [f"on {name_all(those)}: {said}" for said, those in ranks.items()]


def name_all(ranks: Sequence[int]) -> str:
    """Name ranks in words, the first one first.

    >>> name_all([0, 1, 2, 4, 6, 7])
    'rank 0 (and ranks 1, 2, 4, 6 and 7)'
    >>> name_all([3, 0, 1, 2, 4])
    'rank 3 (and ranks 0 to 2 and 4)'
    """
    first, *others = ranks
    if not others:
        return f"rank {first}"
    return f"rank {first} (and rank{'s' * (len(others) > 1)} {_in_words(others)})"


def _in_words(ranks: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def how_it_ended(code: int | None) -> str:
    """Describe the end of a process by its exit code, negative for a signal: 'exit code 3'.

    >>> how_it_ended(-9)
    'killed by SIGKILL (out of memory is one cause)'
    """
    if code is None:
        return "its connection closed"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (" (out of memory is one cause)" if name == "SIGKILL" else "")


def crash_frames(text: str) -> list[tuple[str, str, bool]]:
    """Return the main thread's stack, outermost frame first, from what faulthandler wrote as the process died.

    The process had one thread when its main thread began, so that is the last one listed.
    """
    found: list[tuple[str, str, bool]] = []
    for file, line, name in re.findall(r'File "(.*)", line (\d+) in (.*)', text.rpartition("hread 0x")[2]):
        if is_bottom(file):
            break
        if name == aside.__name__ and file == aside.__code__.co_filename:
            found.clear()  # it did our work
            continue
        if not is_hidden(file) and (found or not is_ours(file)):
            source = linecache.getline(file, int(line)).strip()
            found.append((place(file, int(line), name), source, is_library(file)))
    return found[::-1]


def stack(frames: list[tuple[str, str, bool]]) -> str:
    """Return the lines of a stack, the reader's own in full, runs of library code as their innermost call."""
    lines, hidden = [], 0
    width = max((len(where) for where, _, library in frames if not library), default=0)
    for i, (where, line, library) in enumerate(frames):
        if library and i + 1 < len(frames):
            hidden += 1
            continue
        if hidden:
            lines.append(f"    ... {hidden} library frame{'s' * (hidden > 1)}")
            hidden = 0
        lines.append(f"    {where:<{width}}  {line}".rstrip())
    return "\n".join(fold(lines))


def unfolded(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Show library frames from the first that differs, of ranks that stand at one line of the program.

    Args:
        outcomes: How each rank's part of the call ended.

    Returns:
        The same outcomes, in which `UNFOLDED` of these frames count as the reader's own.
    """
    alike: dict[tuple[str, ...], list[Outcome]] = {}
    for one in outcomes:
        lines = tuple(where for where, _, library in one.frames if not library)
        if one.kind == "unfinished" and lines:
            alike.setdefault(lines, []).append(one)
    opened: dict[int, Outcome] = {}
    for same in alike.values():
        each = [[where for where, *_ in one.frames] for one in same]
        steps = enumerate(itertools.zip_longest(*each))
        first = next((i for i, wheres in steps if len(set(wheres)) > 1), None)
        if first is None:
            continue
        shown = range(first, first + UNFOLDED)
        for one in same:
            frames = [(w, line, lib and i not in shown) for i, (w, line, lib) in enumerate(one.frames)]
            opened[id(one)] = replace(one, frames=frames)
    return [opened.get(id(one), one) for one in outcomes]


def fold(lines: Sequence[str]) -> list[str]:
    """Return the lines, with what a recursion repeats only once.

    >>> fold(["    a", "    b", "    a", "    b", "    a", "    b", "    c"])
    ['    a', '    b', '    ... the same 2 lines 2 times more', '    c']
    """
    folded: list[str] = []
    at = 0
    while at < len(lines):
        length, times = max(
            ((length, _times(lines, at, length)) for length in range(1, PERIOD + 1)),
            key=lambda found: found[0] * found[1] if found[1] > 2 else 0,
        )
        if times <= 2:
            length = times = 1
        folded += lines[at : at + length]
        if times > 1:
            same = "line" if length == 1 else f"{length} lines"
            folded.append(f"    ... the same {same} {times - 1} times more")
        at += length * times
    return folded


def _times(lines: Sequence[str], at: int, length: int) -> int:
    """How often the `length` lines from `at` on stand there in a row."""
    block, times = lines[at : at + length], 1
    while lines[at + times * length : at + (times + 1) * length] == block:
        times += 1
    return times


Ending = Literal["raised", "died", "stalled", "timed out", "not returned", "not started"]


class RankError(RuntimeError):
    """A call on the ranks failed.

    Attributes:
        ended: 'raised' (an error on a rank), 'died' (a process ended), 'stalled' (the ranks waited for each other
            longer than the stall limit), 'timed out', 'not returned' (a result could not travel to the kernel) or
            'not started' (the ranks did not come up).
        outcomes: every rank's `Outcome`, the cause first.
        difference: the first collective in which the ranks differ, such as 'at collective 3: rank 0 all_reduce,
            rank 1 never called it'; '' where none is known.
        __cause__: the culprit's own exception, where it could travel.

    >>> RankError("rank 0 failed", [Outcome(0, "error", "ValueError", "no")], ended="raised").ended
    'raised'
    """

    def __init__(
        self,
        headline: str,
        outcomes: Sequence[Outcome],
        after: str = "",
        *,
        ended: Ending,
        difference: str = "",
    ):
        self.headline, self.ended, self.difference = headline, ended, difference
        self.outcomes = sorted(outcomes, key=lambda o: (o.order, o.rank))
        self.after = after
        super().__init__("\n".join(filter(None, [headline, *paragraphs(self.outcomes), after])))

    @property
    def rank(self) -> int:
        """The rank that caused the failure."""
        return self.outcomes[0].rank

    @property
    def hung(self) -> bool:
        """Whether a time limit ended the call."""
        return self.ended in ("stalled", "timed out")

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of frames of ours, which say nothing about the reader's code."""
        return str(self).splitlines()


def explain(
    how: str,
    outcomes: Sequence[Outcome],
    seconds: float,
    limit: float | None,
    patience: float | None,
    after: str,
) -> RankError:
    """Make the error of a call that did not end well.

    Args:
        how: 'failed', 'timeout' or 'stalled'.
        outcomes: How each rank's part of the call ended.
        seconds: How long the call took.
        limit: Its timeout, in seconds.
        patience: Its stall limit, in seconds.
        after: What became of the ranks, the last paragraph.

    Returns:
        The error; its `__cause__` is the exception of the rank that failed first, where that could travel.
    """
    if how == "failed":
        first = min(outcomes, key=lambda o: (o.order, o.rank))
        error = RankError(
            f"rank {first.rank} failed after {seconds:.2f} s",
            outcomes,
            after,
            ended="died" if first.kind == "dead" else "raised",
        )
        if first.exception:
            with suppress(Exception):
                error.__cause__ = travel[1](first.exception)
        return error
    if how == "stalled":
        did = (
            "the ranks have waited for each other"
            if any(o.waits for o in outcomes)
            else "no rank has gone on"
        )
        head = f"stalled: {did} for {patience:g} s (stall limit), {seconds:.1f} s in all"
        return waiting(head, "stalled", outcomes, after)
    return waiting(f"no end within {limit:g} s (timeout)", "timed out", outcomes, after)


def waiting(head: str, ended: Ending, outcomes: Sequence[Outcome], after: str = "") -> RankError:
    """Make the error of a call that a time limit ended, with the first difference between the ranks' collectives.

    Args:
        head: The headline.
        ended: 'stalled' adds each rank's last collectives; or 'timed out'.
        outcomes: Where each rank stood.
        after: The last paragraph.
    """
    found, outcomes = differences(outcomes), unfolded(outcomes)
    facts = [circle({o.rank: o.sends for o in outcomes if o.sends}), "\n".join(map(str, found))]
    facts += paragraphs(outcomes, Outcome.describe_collectives) if ended == "stalled" else []
    first = next((one.in_words() for one in found if not one.only_lines), "")
    return RankError(head, outcomes, "\n".join(filter(None, [*facts, after])), ended=ended, difference=first)


@dataclass(frozen=True)
class Difference:
    """A collective in which ranks differ.

    Attributes:
        number: Its number in the group.
        group: Name of the process group.
        calls: What each rank called; None for a rank that never called it.
        only_lines: Whether they differ only in the line that calls it.
        repeats: Whether a rank never called it, and the calls before it are those of a loop: then only the counts
            differ here, and the rank may have left out any earlier one.
    """

    number: int
    group: str
    calls: dict[int, Collective | None]
    only_lines: bool = False
    repeats: bool = False

    def said(self) -> dict[int, str]:
        """Return in words what each rank called."""
        return {rank: c.describe() if c else "never called it" for rank, c in self.calls.items()}

    def in_words(self) -> str:
        """Return one line: 'at collective 3: rank 0 all_reduce, rank 1 never called it'."""
        said = ", ".join(f"rank {rank} {what}" for rank, what in self.said().items())
        return f"at collective {self.number}{self._of}: {said}"

    @property
    def _of(self) -> str:
        return "" if self.group == "0" else f" of group {self.group}"

    def __str__(self) -> str:
        width = max(len(str(rank)) for rank in self.calls)
        head = "Called from different lines since" if self.only_lines else "First difference, at"
        lines = [f"    rank {rank:<{width}}  {what}" for rank, what in self.said().items()]
        lines += (
            ["    the calls repeat: the one that was left out may be any earlier one"] if self.repeats else []
        )
        return "\n".join([f"{head} collective {self.number}{self._of}:", *lines])


def differences(outcomes: Sequence[Outcome]) -> list[Difference]:
    """Return the first collective in which ranks differ, then the first that they call from different lines, if any."""
    recorded = [o for o in outcomes if o.collectives is not None]
    if len(recorded) < 2:
        return []
    shared = {o.rank: [c for c in o.collectives or () if not c.between_two] for o in recorded}
    # ranks may have made groups of one name with other members; a rank that has destroyed its group knows none
    members_of: dict[str, set[tuple[int, ...]]] = {}
    for call in itertools.chain(*shared.values()):
        members_of.setdefault(call.group, set()).update({call.ranks} - {()})

    def group_of(rank: int, call: Collective) -> tuple[str, tuple[int, ...]]:
        fitting = [those for those in members_of[call.group] if rank in those]
        return call.group, call.ranks or (fitting[0] if len(fitting) == 1 else ())

    calls = {rank: {(group_of(rank, c), c.number): c for c in found} for rank, found in shared.items()}
    groups = {group_of(rank, c): None for rank, found in shared.items() for c in found}
    lines: list[Difference] = []
    for group in groups:
        inside = {rank for rank, known in calls.items() if any(g == group for g, _ in known)}
        name, members = group
        ranks = sorted(
            calls if name == "0" else inside.union(members) & set(calls)
        )  # every rank is in the first one
        numbers = [[n for g, n in calls[rank] if g == group] for rank in ranks]
        oldest = max((min(ns) for ns in numbers if ns), default=0)  # older ones have left some rank's record
        for number in range(oldest, max(itertools.chain(*numbers), default=-1) + 1):
            here = {rank: calls[rank].get((group, number)) for rank in ranks}
            if len({c and c.signature for c in here.values()}) > 1:
                caller = next(rank for rank, call in here.items() if call)  # all called the same before
                before = [calls[caller].get((group, n)) for n in range(oldest, number)]
                repeats = None in here.values() and _loops(before)
                return [Difference(number, name, here, repeats=repeats), *lines]
            if not lines and len({c and c.place for c in here.values()}) > 1:
                lines = [Difference(number, name, here, only_lines=True)]
    return lines


def _loops(calls: Sequence[Collective | None]) -> bool:
    """Whether the last of these calls are those before them, from the same lines."""
    known = [call and (call.signature, call.place) for call in calls]
    return any(
        known[-length:] == known[-2 * length : -length] for length in range(1, min(LOOP, len(known) // 2) + 1)
    )

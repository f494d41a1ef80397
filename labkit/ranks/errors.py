"""One error for a failed call: the culprit rank and its own source lines first, then where every other rank stood."""

from __future__ import annotations

import linecache
import re
import signal
from dataclasses import dataclass, field
from typing import Any

from labkit.ranks.standing import HIDDEN, SHOWN, Collective, is_library, place

# what a rank reports when a peer left a collective: a consequence, not the cause
_PEER_GONE = (
    "closed by peer",
    "Connection reset",
    "Broken pipe",
    "Connection closed",
    "connection reset",
    "is gone",
)


@dataclass
class Outcome:
    """How one rank's part of a call ended: 'ok', 'error', 'unpicklable', 'dead' or 'unfinished'."""

    rank: int
    kind: str
    type: str = ""
    message: str = ""
    frames: list[tuple[str, str, bool]] = field(default_factory=list)
    text: str = ""
    code: int | None = None
    exception: bytes | None = None
    waits: str = ""
    collectives: list[Collective] | None = None

    @property
    def order(self) -> int:
        """The cause comes first: a dead process, then an error of its own, then what follows from a peer's end."""
        if self.kind == "dead":
            return 0
        if self.kind in ("error", "unpicklable"):
            if self.type == "KeyboardInterrupt":
                return 4
            return 3 if any(words in self.message for words in _PEER_GONE) else 1
        return 4 if self.kind == "unfinished" else 5

    def describe(self) -> str:
        """A paragraph about this rank, source lines included."""
        who = f"rank {self.rank}"
        if self.kind == "ok":
            return f"{who} finished its part."
        if self.kind == "dead":
            died = f"{who} died: {how_it_ended(self.code)}"
            return f"{died}, here:\n{stack(self.frames)}" if self.frames else f"{died}."
        if self.kind == "unpicklable":
            return f"{who} finished, but its result cannot travel back to the kernel: {self.message}"
        if self.kind == "unfinished":
            if not self.frames:
                return f"{who} was {self.message or 'busy outside Python and did not say where'}."
            doing = f"was waiting in {self.waits}" if self.waits else "was"
            return f"{who} {doing} here:\n{stack(self.frames)}"
        head = f"{who} raised {self.type}: {self.message}" if self.message else f"{who} raised {self.type}"
        return f"{head}\n{stack(self.frames)}" if self.frames else head

    def describe_collectives(self) -> str:
        """The last collectives of this rank, a line each; '' when it said nothing about them."""
        if self.collectives is None:
            return ""
        if not self.collectives:
            return f"rank {self.rank} has called no collective."
        last = self.collectives[-SHOWN:]
        lines = [f"    {c.number}  {c.describe()}{'' if c.ended else '  (not finished)'}" for c in last]
        return "\n".join([f"last collectives of rank {self.rank}:", *lines])


def how_it_ended(code: int | None) -> str:
    """A process' end in words: 'killed by SIGKILL', 'exit code 3'.

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
    """The main thread's stack, outermost first, out of what faulthandler wrote as the process died.

    The process had one thread when its main thread began, so that is the last one listed.
    """
    found = []
    for file, line, name in re.findall(r'File "(.*)", line (\d+) in (.*)', text.rpartition("hread 0x")[2]):
        if file in HIDDEN and file.endswith("worker.py"):
            break
        if file not in HIDDEN:
            source = linecache.getline(file, int(line)).strip()
            found.append((place(file, int(line), name), source, is_library(file)))
    return found[::-1]


def stack(frames: list[tuple[str, str, bool]]) -> str:
    """Source lines, the reader's own in full, runs of library code as their innermost call."""
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
    return "\n".join(lines)


class RankError(RuntimeError):
    """A call on the ranks failed.

    `outcomes` holds every rank's `Outcome`, the cause first; `rank` is the culprit; `__cause__` is the
    culprit's own exception where it could travel.
    """

    def __init__(self, headline: str, outcomes: list[Outcome], after: str = ""):
        self.headline = headline
        self.outcomes = sorted(outcomes, key=lambda o: (o.order, o.rank))
        self.after = after
        super().__init__("\n".join(filter(None, [headline, *self._paragraphs(), after])))

    @property
    def rank(self) -> int:
        return self.outcomes[0].rank

    def _paragraphs(self) -> list[str]:
        shown: list[str] = []
        said: dict[str, int] = {}
        for outcome in self.outcomes:
            text = outcome.describe()
            key = text.split(" ", 2)[-1]
            if outcome.kind in ("error", "unpicklable") and key in said:
                shown[said[key]] = shown[said[key]].replace("raised", f"(and rank {outcome.rank}) raised", 1)
                continue
            said[key] = len(shown)
            shown.append(text)
        return shown

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of labkit's own frames, which say nothing about the reader's code."""
        return str(self).splitlines()


def from_report(rank: int, report: dict[str, Any]) -> Outcome:
    """The Outcome of a rank that raised, from what the rank sent."""
    message = "\n".join([report["message"], *report.get("notes", ())]).strip()
    return Outcome(
        rank, "error", report["type"], message, report["frames"], report["text"], None, report["exception"]
    )

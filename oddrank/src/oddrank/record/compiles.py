"""One rank's trace, folded into rows: what each compile was, and which fact stands at which line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, TypeVar

from oddrank.places import is_library
from oddrank.record import callers, payloads
from oddrank.record.guard_words import bare
from oddrank.record.nodes import COLLECTIVE
from oddrank.record.payloads import Break, resumed
from oddrank.record.source import Sources
from oddrank.record.tables import Compile, Line, Mark, Table, Tables
from oddrank.record.trace_log import Entry

__all__ = ["MOST_COMPILES", "Compiles", "Parsed"]

MOST_COMPILES = 20_000  # of a rank
MOST_FRAMES = 2_000  # of a stack; Python stops at a thousand where nobody asks for more
MOST_MARKS = 2_000_000  # of a rank
MOST_SYMBOLS = 1_000  # of a compile, and of their guards
MOST_TEXT = 64 << 20  # characters of graphs and code that are kept while a process runs; the oldest go first

# torch's entry -> the stage, in the order in which a function passes through them
STAGES = {
    "dynamo_output_graph": "dynamo",
    "dynamo_cpp_guards_str": "guards",
    "aot_joint_graph": "aot_joint",
    "aot_forward_graph": "aot_forward",
    "aot_inference_graph": "aot_forward",
    "aot_backward_graph": "aot_backward",
}
GRAPHS = {"dynamo": "dynamo", "aot_forward": "forward", "aot_backward": "backward"}
_BACKWARD = re.compile(r"^# AOT ID: \['\d+_backward'\]", re.M)
_LIMIT = "recompile limit"
_SYMBOL = re.compile(r"\b[a-z]+\d+\b")
_STACK = re.compile(r'File "(?>(.+?)", line )(\d{1,9}), in (.+)')

T = TypeVar("T")


class Parsed:
    """What became of texts, by the hash that torch gives them: what 64 ranks share is parsed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Callable[..., Any], str, int], Any] = {}

    def get(self, parse: Callable[[str], T], entry: Entry) -> T:
        """What `parse` makes of an entry's text."""
        if not entry.hash:
            return parse(entry.text())
        key = parse, entry.hash, entry.size
        if key not in self._known:
            self._known[key] = parse(entry.text())
        return self._known[key]


@dataclass
class Try:
    """One compile while its entries arrive.

    Args:
        id: Torch's own, which it uses again after a reset of Dynamo.
        epoch: How many resets there were before.
        row: Its row.
        started: When it began, in seconds of `time.monotonic()`; 0 for a trace in a file.
        ready: When its code was there, before the first call of it; None where that is not known.
    """

    id: str
    epoch: int
    row: Compile
    started: float = 0.0
    ready: float | None = None
    begun: bool = False  # a failed guard is reported before tracing starts
    finished: bool = False
    has_code: bool = False
    attempt: int = 0
    texts: list[tuple[str, Entry]] = field(
        default_factory=list
    )  # graphs and code by stage, parsed when they are read
    stacks: dict[str, list[str]] = field(default_factory=dict)  # kernel -> stacks, where torch tells them
    traced: bool = False  # a graph was given to the backend, in so many pieces where DDP cuts it
    pieces: int = 0
    break_text: str = ""
    failure: tuple[str, str, str, int] = ("", "", "", 0)  # type, reason, file, line
    callers: list[tuple[str, int, str]] | None = None  # of its collectives, where the compiler told them
    called: dict[str, tuple[str, int, str]] = field(
        default_factory=dict
    )  # of operators inside libraries, by name
    inlined: tuple[tuple[str, int, str], ...] = ()
    symbols: dict[str, str] = field(default_factory=dict)  # a size that may change -> what it is of
    needs: list[tuple[str, int]] = field(default_factory=list)  # guards on these, and their lines
    before: CodeType | None = None  # the bytecode that Dynamo read, and the one it put in its place
    after: CodeType | None = None

    @property
    def gave_up(self) -> bool:
        """Whether the frame runs eagerly from now on."""
        return self.row.outcome == "gave-up"

    def text(self, *stages: str) -> str:
        """The text of some stages, one after the other; '' where it was not kept."""
        return "\n\n".join(entry.text() for stage, entry in self.texts if stage in stages)


class Compiles:
    """The compiles of one rank, in the order in which they began.

    Args:
        rank: The rank; where an entry says another, that one counts.
        sources: The text of the program's files, each read once.
        parsed: Texts that other ranks had as well.
        file_name: The path of a file that torch wrote as a number before this began to listen; '' for unknown.
    """

    def __init__(
        self,
        rank: int | None,
        sources: Sources,
        parsed: Parsed | None = None,
        file_name: Callable[[int], str] = lambda number: "",
    ) -> None:
        self.rank = rank
        self.torch = ""
        self.listening = False  # to a running process, which may compile for days
        self.tries: dict[
            tuple[int, str], Try
        ] = {}  # by epoch, that is since a reset of Dynamo, and torch's id
        self.epoch = 0
        self.left_out = 0  # entries that could not be read
        self.beyond = 0  # compiles beyond the limit
        self.keep_stages = True  # whether to keep what comes after Dynamo's graph
        # called when a compile begins, when its caches answer, and when it ends
        self.listeners: list[Callable[[Try], None]] = []
        self.sources = sources
        self._parsed = parsed or Parsed()
        self._names: dict[int, str] = {}
        self._file_name = file_name
        self._last_frame = -1
        self._code: dict[tuple[str, int], str] = {}
        # what only a break needs whose line torch left out, made when one asks for it:
        # (file, function, line after which it goes on) -> frames in the chains of compiles, with the ids of these
        self._chains: dict[tuple[str, str, int], dict[tuple[str, int, str], set[str]]] | None = None
        # and a broken compile, by its id() -> where the rest of its code begins
        self._rests: dict[int, tuple[str, int, str]] | None = None
        self._kept = 0  # characters

    # --- entries of the trace ---

    def feed(self, entry: Entry, at: float = 0.0) -> None:
        """Take one entry; a malformed one is left out and counted.

        Args:
            entry: Of the trace.
            at: When it came, in seconds of `time.monotonic()`.
        """
        try:
            self._feed(entry, at)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            self.left_out += 1

    def refused(self, code: CodeType, why: str, at: float, chain: Sequence[tuple[str, int, str]]) -> None:
        """Take a frame that was given up before a compile of it began, which torch gives no id.

        Args:
            code: Of the frame.
            why: What Dynamo raised.
            at: When, in seconds of `time.monotonic()`.
            chain: Its callers, outermost first.
        """
        id_ = f"-/{sum(one.id.startswith('-') for one in self.tries.values())}"
        row = Compile(0, id_, code.co_filename, code.co_firstlineno, code.co_name, outcome="gave-up")
        row.chain = tuple(chain[-MOST_FRAMES:])
        one = Try(id_, self.epoch, row, at, begun=True, finished=True, failure=("Unsupported", why, "", 0))
        one.break_text = f"Graph Break Reason: {why}\nUser code traceback:\n"
        self.tries[self.epoch, id_] = one
        self._tell(one)

    def _feed(self, entry: Entry, at: float) -> None:
        kind = entry.kind
        if kind == "str":
            self._names[_whole(entry.said[1])] = str(entry.said[0])
            return
        if kind == "torch_version":
            self.torch = str(json.loads(entry.text()).get("pytorch_version", ""))
            return
        if self.rank is None and isinstance(entry.rank, int):
            self.rank = entry.rank
        if not entry.id:
            return
        if kind in ("dynamo_start", "recompile_reasons"):
            self._begin(entry, at)
        one = self.tries.get((self.epoch, entry.id))
        if one is None:
            return
        if kind == "dynamo_start":
            self._start(one, entry.said["stack"])
            self._tell(one)
        elif kind in STAGES or kind in ("inductor_output_code", "optimize_ddp_split_graph"):
            self._graph(one, entry)
        elif kind == "optimize_ddp_split_child":
            one.pieces += str(entry.said["name"]).startswith("submod_")
        elif kind == "dynamo_graph_break_reason":
            one.break_text = entry.text().split("\nTraceback (most recent call last)")[
                0
            ]  # then comes Dynamo's own
        elif kind == "recompile_reasons":
            one.row.reasons = tuple(self._parsed.get(payloads.failed_guards, entry))
            one.row.why = bare(one.row.reasons[0]) if one.row.reasons else ""
        elif kind.startswith(("fx_graph_cache_", "aotautograd_cache_")):
            known = one.row.cached
            one.row.cached = kind.endswith("_hit") or known or False
            if one.row.cached != known:
                self._tell(one)
        elif kind == "create_symbol" and len(one.symbols) < MOST_SYMBOLS:
            name, source, values = (str(entry.said[key]) for key in ("symbol", "source", "vr"))
            one.symbols[name] = payloads.symbol(source, values)
        elif kind in ("guard_added", "guard_added_fast") and len(one.needs) < MOST_SYMBOLS:
            stack = entry.said.get("user_stack")
            if stack:  # without, it is of an input itself
                one.needs.append((str(entry.said["expr"])[:500], _whole(stack[0]["line"])))
        elif kind == "compilation_metrics":
            self._finish(one, entry.said)
            self._tell(one)
        elif kind == "bwd_compilation_metrics":
            one.row.backward_s = _number(entry.said.get("duration_us")) / 1e6
        elif kind.startswith("inductor_provenance"):
            told = json.loads(entry.text())
            one.stacks |= {str(name): [str(stack) for stack in stacks] for name, stacks in told.items()}

    def _tell(self, one: Try) -> None:
        for listener in self.listeners:
            listener(one)

    def _begin(self, entry: Entry, at: float) -> None:
        known = self.tries.get((self.epoch, entry.id))
        starts = entry.kind == "dynamo_start"
        if known is not None and not known.finished and not (known.begun and starts):
            return
        if known is not None and not known.finished and entry.attempt:
            return
        frame = entry.id.split("/")[-2] if "/" in entry.id else ""
        number = int(frame) if frame.isdigit() else -1
        # Dynamo numbers frames upwards until it is reset, so an id seen before starts a new life of the process
        if known is not None or (entry.id == "0/0" and self._last_frame >= 0):
            self.epoch += 1
            self._last_frame = -1
        self._last_frame = max(self._last_frame, number)
        if len(self.tries) >= MOST_COMPILES:
            self.beyond += 1
            return
        row = Compile(0, entry.id)
        # a compile that ends at the recompile limit never says which function it is of; its frame's first one did
        if first := self.tries.get((self.epoch, f"{entry.id.rpartition('/')[0]}/0")):
            row.file, row.line, row.func, row.resume = (
                getattr(first.row, n) for n in ("file", "line", "func", "resume")
            )
        self.tries[self.epoch, entry.id] = Try(entry.id, self.epoch, row, at)

    def _start(self, one: Try, stack: Sequence[dict[str, Any]]) -> None:
        if one.begun:
            return
        frames = []
        for frame in stack[-MOST_FRAMES:]:
            number = _whole(frame["filename"])
            file = self._names.get(number) or self._file_name(number)
            frames.append((file, _whole(frame["line"]), str(frame["name"])))
            if frame.get("loc"):
                self._code.setdefault(frames[-1][:2], str(frame["loc"]))
        one.begun = True
        one.row.file, one.row.line, name = frames[-1]
        one.row.func, one.row.resume = resumed(name)
        one.row.chain = tuple(frames[:-1])

    def _graph(self, one: Try, entry: Entry) -> None:
        if entry.attempt > one.attempt:  # tracing began anew: what an earlier attempt left is not what runs
            one.attempt, one.pieces, one.traced = entry.attempt, 0, False
            self._drop(one)
        stage = STAGES.get(entry.kind, "")
        if stage == "dynamo":  # comes first, and a later one replaces it
            if one.texts and one.texts[0][0] == "dynamo":
                self._kept -= one.texts.pop(0)[1].size
            one.texts.insert(0, (stage, entry))
            self._kept += entry.size
            one.pieces = 0
            one.traced = True
            self._bound()
            return
        if not (self.keep_stages or entry.kind == "optimize_ddp_split_graph"):
            # collectives of DTensor stand in no graph before this one
            if stage != "aot_forward" or "_c10d_functional" not in entry.text():
                return
        if entry.kind == "inductor_output_code":
            text = entry.text()
            stage = "inductor_backward" if _BACKWARD.search(text[:200]) or "tangents_" in text else "inductor"
        one.texts.append((stage or entry.kind, entry))
        self._kept += entry.size
        self._bound()

    def _bound(self) -> None:
        """Drop the oldest texts of a process that has compiled for long."""
        if self._kept > MOST_TEXT and self.listening:
            for old in list(self.tries.values())[:-1]:
                self._drop(old)
                if self._kept <= MOST_TEXT:
                    break

    def _drop(self, one: Try) -> None:
        self._kept -= sum(entry.size for _, entry in one.texts)
        one.texts.clear()

    def _finish(self, one: Try, said: dict[str, Any]) -> None:
        row = one.row
        failure = [str(said.get(f"fail_{name}") or "") for name in ("type", "reason", "user_frame_filename")]
        whole = ("fail_user_frame_lineno", "graph_op_count", "guard_count", "co_firstlineno")
        failed_at, operators, guards, line = (_whole(said.get(name)) for name in whole)
        times = ("entire_frame_compile_time_s", "backend_compile_time_s")
        seconds, backend_s = (_number(said.get(name)) for name in times)
        one.has_code = bool(said.get("has_guarded_code"))
        # of an interrupt torch notes neither a failure nor a graph
        one.finished = one.has_code or bool(failure[0]) or said.get("graph_op_count") is not None
        one.failure = (failure[0], failure[1], failure[2], failed_at)
        row.operators, row.guards, row.seconds, row.backend_s = operators, guards, seconds, backend_s
        if not row.func and said.get("co_name"):
            row.func, row.resume = resumed(str(said["co_name"]))
        row.file = row.file or str(said.get("co_filename") or "")
        row.line = row.line or line
        if one.finished:
            self._outcome(one)

    def epoch_now(self, frames: int | None) -> int:
        """The current epoch: one more than the last one seen where Dynamo was reset since.

        Args:
            frames: How many frames Dynamo has numbered since it was last reset; None where torch does not say.
        """
        return self.epoch + (frames is not None and self._last_frame >= frames)

    # --- rows ---

    def chosen(self, which: Callable[[Try], bool] = lambda one: True) -> list[tuple[Try, Compile]]:
        """Some of the compiles, each with a new row: torch's ids are told apart, and later entries do not change it.

        Args:
            which: Those that are wanted.
        """
        found: list[tuple[Try, Compile]] = []
        times: dict[str, int] = {}
        for one in list(self.tries.values()):
            if which(one):
                n = times[one.id] = times.get(one.id, 0) + 1
                name = one.id if n == 1 else f"{one.id} ({n})"
                found.append((one, replace(one.row, rank=self.rank or 0, id=name)))
        return found

    def tables(self, chosen: Sequence[tuple[Try, Compile]]) -> Tables:
        """The tables of these compiles.

        Args:
            chosen: As `chosen` gives them.
        """
        made = Tables(torch=self.torch)
        rank = self.rank or 0
        self._chains = self._rests = None
        made.compiles += (row for _, row in chosen)
        for one, row in chosen:
            marks = self._marks(one, row)
            if len(made.marks) + len(marks) > MOST_MARKS:
                made.notes.append(f"rank {rank}: only the first {len(made.marks)} facts were kept")
                break
            made.marks += marks
        qualified = self.sources.qualified
        for row in made.compiles:  # last: until here the name is the code's own
            row.func = qualified(row.file, row.resume or row.line, row.func)
        for mark in made.marks:
            mark.func = qualified(mark.file, mark.line, mark.func)
            if mark.chain:
                mark.chain = tuple(
                    (file, line, qualified(file, line, resumed(func)[0])) for file, line, func in mark.chain
                )
        made.code = Table(Line, (Line(file, line, text) for (file, line), text in self._code.items()))
        if self.left_out:
            entries = "entries" if self.left_out > 1 else "entry"
            made.notes.append(f"rank {rank}: {self.left_out} malformed {entries} left out")
        if self.beyond:
            made.notes.append(f"rank {rank}: only the first {MOST_COMPILES} compiles were kept")
        return made

    @staticmethod
    def _outcome(one: Try) -> None:
        row, kind, reported = one.row, one.failure[0], bool(one.break_text)
        row.broke = one.has_code and reported
        if one.has_code:
            row.outcome = "graph" if row.operators else "empty"
        elif kind in ("", "SkipFrame") or _LIMIT in one.failure[1] or (reported and kind == "Unsupported"):
            row.outcome = "gave-up"
        else:
            row.outcome = "error"
        # torch 2.15 gives a graph without operators to no backend
        given = one.traced and (row.operators > 0 or row.backend_s > 0)
        row.graphs = (one.pieces or int(given)) if one.has_code else 0

    def _marks(self, one: Try, row: Compile) -> list[Mark]:
        found: list[Mark] = []
        nodes: dict[tuple[str, str], Mark] = {}

        def add(file: str, line: int, func: str, kind: str, **more: Any) -> Mark:
            found.append(Mark(row.rank, row.id, file, line, resumed(func)[0], kind, **more))
            return found[-1]

        row.collectives = 0
        for stage, entry in one.texts:
            if stage not in GRAPHS:
                continue
            stage = GRAPHS[stage]
            if stage == "dynamo":
                row.digest = self._parsed.get(payloads.digest, entry)
            for op in self._parsed.get(payloads.graph, entry):
                self._code.setdefault((op.file, op.line), op.code)
                called = COLLECTIVE.search(op.target)
                if called and stage == "dynamo":
                    row.collectives += 1
                    told = {"name": called[1], "text": op.type, "hints": (op.group,)}
                    add(op.file, op.line, op.func, "collective", stage=stage, **told)
                nodes[stage, op.name] = add(
                    op.file, op.line, op.func, "op", stage=stage, name=op.target, text=op.type
                )
        callers.place(row, found, self.sources, one.callers)
        callers.move(nodes, one.called)
        for file, line, func in one.inlined:
            add(file, line, func, "inlined")
        for entry in (entry for stage, entry in one.texts if stage == "optimize_ddp_split_graph"):
            parts = self._parsed.get(payloads.parts, entry)
            for n, (file, line, func) in enumerate(parts[1:], 2):
                add(file, line, func, "split", name=f"DDP cuts the graph: part {n} of {len(parts)}")
        self._kernels(one, nodes, add)
        if one.break_text:
            self._break(one, row, payloads.report(one.break_text), found, add)
        elif row.outcome == "error":
            kind, reason, file, line = one.failure
            said = payloads.report(f"Graph Break Reason: {reason}\nUser code traceback:\n")
            title = said.title if kind == "Unsupported" else f"{kind}: {said.title}"
            about = {"name": title, "text": said.why, "hints": said.hints}
            add(file or row.file, line or row.line, row.func, "error", exact=bool(file), **about)
        if row.reasons:
            at_limit = _LIMIT in one.failure[1] or "RecompileLimit" in one.failure[0]
            at_limit = at_limit or not (one.begun or one.finished)
            used = re.search(r"# (\S+):(\d+) in ", row.reasons[0])
            about = {
                "name": row.why,
                "hints": row.reasons[1:],
                "via": f"{row.file}:{used[2]}" if used else "",
            }
            add(row.file, row.resume or row.line, row.func, "limit" if at_limit else "recompile", **about)
        types = {m.text for m in found if m.kind == "op" and m.stage == "dynamo"} if one.symbols else ()
        shown = set(_SYMBOL.findall(" ".join(types)))
        needs = [(f"needs `{guard}` (line {n})", set(_SYMBOL.findall(guard))) for guard, n in one.needs]
        for symbol, text in one.symbols.items():
            if symbol in shown:
                guards = tuple(dict.fromkeys(words for words, names in needs if symbol in names))
                names = {"name": symbol, "text": text}
                add(row.file, row.resume or row.line, row.func, "symbol", **names, hints=guards)
        if row.outcome == "unfinished":
            add(
                row.file,
                row.line,
                row.func,
                "unfinished",
                name="its compile had not ended when the trace ends",
            )
        return found

    def _kernels(self, one: Try, nodes: dict[tuple[str, str], Mark], add: Callable[..., Mark]) -> None:
        """Kernels at the lines of the operators they were made of; exact where torch tells each kernel's stacks."""
        for name, stacks in one.stacks.items():
            for stack in dict.fromkeys(stacks):
                frames = [(f, int(n), fn) for f, n, fn in _STACK.findall(stack)]
                mine = [frame for frame in frames if not is_library(frame[0])]
                if mine:
                    via = "" if frames[-1] == mine[-1] else f"{frames[-1][0]}:{frames[-1][1]}"
                    add(*mine[-1], "kernel", name=name.split(":")[0], via=via)
        for stage, entry in () if one.stacks else one.texts:
            if not stage.startswith("inductor"):
                continue
            backward = stage == "inductor_backward"
            order = ("backward", "forward", "dynamo") if backward else ("forward", "dynamo", "backward")
            for name, made_of in self._parsed.get(payloads.kernels, entry):
                ops = [next((nodes[s, node] for s in order if (s, node) in nodes), None) for node in made_of]
                for file, line, func, exact in dict.fromkeys(
                    (m.file, m.line, m.func, m.exact) for m in ops if m
                ):
                    add(file, line, func, "kernel", stage=order[0], name=name, exact=exact)

    def _break(
        self, one: Try, row: Compile, said: Break, found: Sequence[Mark], add: Callable[..., Mark]
    ) -> None:
        """A break stands at the line of the compiled frame itself; `via` names the program's line that it calls."""
        kind = "gave-up" if row.outcome == "gave-up" else "break"
        about: dict[str, Any] = {
            "name": said.title,
            "text": said.why,
            "hints": said.hints,
            "report": said.text,
        }
        if not said.frames:
            add(row.file, row.line, row.func, kind, **about)
            return
        for file, line, _, code in said.frames:
            self._code.setdefault((file, line), code)
        at: Sequence[Any] | None = next(
            (frame for frame in reversed(said.frames) if self._own(row, frame)), None
        )
        exact = True
        if at is None:
            # torch 2.13 to 2.15 merge neighbours of one name, such as `forward` that calls a `forward`, so this frame's
            # line may be missing: the rest of its code goes on there, or what it called then was compiled
            at = self._goes_on(one)
            at = at or next((frame for frame in self._called_from(row) if self._own(row, frame)), None)
            if at is None and (tail := self._tail(row, found)):
                at, exact = (row.file, tail, row.func), False
        if at is None:
            mine = [frame for frame in said.frames if not is_library(frame[0])]
            at, kind = (mine or said.frames)[-1], "cause" if kind == "gave-up" else kind
        # what is deeper than the frame itself; where torch left that out, deeper than its callers
        before = {at[:2], *(frame[:2] for frame in row.chain)}
        known = [i for i, frame in enumerate(said.frames) if frame[:2] in before]
        deeper = said.frames[known[-1] + 1 :] if known else said.frames
        mine = [frame for frame in deeper if not is_library(frame[0])]
        if (
            is_library(at[0]) and not mine
        ):  # a library's own frame: begin with the program's line that called it
            own = [i for i, frame in enumerate(said.frames) if not is_library(frame[0])]
            deeper = said.frames[own[-1] :] if own else deeper
        about["chain"] = tuple(frame[:3] for frame in deeper)
        via = mine[-1] if mine else deeper[-1] if deeper else at
        about |= {"exact": exact, "via": "" if via[:2] == at[:2] else f"{via[0]}:{via[1]}"}
        add(at[0], at[1], row.func, kind, **about)
        if kind in ("gave-up", "cause"):
            title, why = said.after if said.after[0] else (said.title, said.why)
            add(
                row.file,
                row.line,
                row.func,
                "def",
                name=title,
                text=why,
                hints=said.hints,
                via=f"{at[0]}:{at[1]}",
            )

    def _goes_on(self, one: Try) -> tuple[str, int, str] | None:
        """Where the rest of a broken frame's code begins: the next such code after the break that no later break of
        that function has taken, since a call inside of it ends first."""
        if self._rests is None:
            self._rests, open_ = {}, dict[tuple[int, str, Any], list[Try]]()
            for other in self.tries.values():
                row = other.row
                key = other.epoch, row.file, self.sources.inside(row.file, row.line) or (row.func, row.line)
                if row.resume and other.id.endswith("/0") and (broken := open_.get(key)):
                    self._rests[id(broken.pop())] = row.file, row.resume, row.func
                if row.broke:
                    open_.setdefault(key, []).append(other)
        found = self._rests.get(id(one))
        if found is None and not one.id.endswith("/0"):  # a recompile: the rest is there already
            first = self.tries.get((one.epoch, f"{one.id.rpartition('/')[0]}/0"))
            found = self._rests.get(id(first))
        return found

    def _called_from(self, row: Compile) -> Iterator[tuple[str, int, str]]:
        """Frames of a compile's code in the chains of other compiles, in their order."""
        if self._chains is None:
            self._chains = {}
            for one in self.tries.values():
                for frame in one.row.chain:
                    key = (frame[0], *resumed(frame[2]))
                    ids = self._chains.setdefault(key, {}).setdefault(frame, set())
                    if len(ids) < 2:
                        ids.add(one.row.id)
        for frame, ids in self._chains.get((row.file, row.func, row.resume), {}).items():
            if ids != {row.id}:
                yield frame

    def _tail(self, row: Compile, marks: Sequence[Mark]) -> int:
        """The line of the `return f(...)` that a frame without a rest breaks at; 0 where the text has none."""
        function = self.sources.inside(row.file, row.line)
        if function is None:
            return 0
        used = [m.line for m in marks if m.kind == "op" and m.stage == "dynamo" and m.file == row.file]
        low = max([row.resume, *(line for line in used if function.first <= line <= function.last)])
        return next((line for line in function.tails if line >= low), 0)

    def _own(self, row: Compile, frame: Sequence[Any]) -> bool:
        """Whether a frame of a stack is the one that this compile is of."""
        file, line, name = frame[:3]
        if file != row.file or resumed(name)[0] != row.func:
            return False
        mine, other = self.sources.inside(file, row.line), self.sources.inside(file, line)
        return mine is None or other is None or mine == other


def _number(value: Any) -> float:
    """A number of the trace; 0 for none."""
    if value is None:
        return 0.0
    if not isinstance(value, (int, float)) or not 0 <= value < 1 << 53:
        raise ValueError("that is no number")
    return float(value)


def _whole(value: Any) -> int:
    """The same of a line, a count or an index."""
    return int(_number(value))

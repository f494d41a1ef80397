"""The tables of a run: a row a compile, a row a fact at a line, a row a collective that ran, the lines of code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from oddrank.places import is_library, place, rewrite

__all__ = ["Collective", "Compile", "Count", "Line", "Mark", "Range", "Segment", "Table", "Tables", "merge"]

Row = TypeVar("Row")
GENERATED = "<eval_with_key>"  # the file of a graph that torch wrote; the number behind it says nothing


@dataclass(slots=True)
class Compile:
    """One try of Dynamo at one frame: a function, or the rest of one after a graph break.

    Args:
        rank: The rank.
        id: Torch's own, 'frame/n'; '!graph/frame/n' under compiled autograd; '0/0 (2)' for the second of this name,
            since Dynamo counts anew after a reset; '-/0' for a frame that was given up before it got one.
        file: Of the frame's code.
        line: Where that code begins: a def with its decorators.
        func: The function, without torch's `torch_dynamo_resume_in_`, and with its class where the source is at hand.
        resume: The line after which a resumed frame goes on; 0 for a function's beginning.
        chain: The callers as (file, line, func), outermost first.
        outcome: 'graph', 'empty' (code without an operator), 'gave-up' (the frame runs eagerly), 'error', or
            'unfinished' (the trace ends first).
        broke: Whether each run of this code ends in a graph break.
        operators: Of Dynamo's graph.
        collectives: Among these.
        graphs: What the backend was given for it: several where DDP cut the graph.
        digest: Of Dynamo's graph, the same on each rank that has the same one; devices and groups do not count.
        guards: How many.
        why: Of a recompile: the guard of the newest earlier code that failed, as torch has it.
        reasons: Every guard that failed, the newest code's first.
        seconds: Of the whole compile.
        backend_s: Of the backend, a part of `seconds`.
        backward_s: Of the backward's own compile, later.
        cached: Whether a cache had the backend's code; None where no cache was asked.
        during: Whether it was compiled in the block that was recorded, or in the trace; False for code from before.
        runs: Calls in the marked forwards, or in a profile; None where nothing was profiled.
        at_collective: Of these, how many had an eager collective after the break that ends them.
        owner: Of a decorator's code: the function that it decorates here, such as 'Block.forward'; '' where that is not
            known. `func` is then the decorator's own, such as 'wrapper'.
    """

    rank: int
    id: str
    file: str = ""
    line: int = 0
    func: str = ""
    resume: int = 0
    chain: tuple[tuple[str, int, str], ...] = ()
    outcome: str = "unfinished"
    broke: bool = False
    operators: int = 0
    collectives: int = 0
    graphs: int = 0
    digest: str = ""
    guards: int = 0
    why: str = ""
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    backend_s: float = 0.0
    backward_s: float = 0.0
    cached: bool | None = None
    during: bool = True
    runs: int | None = None
    at_collective: int = 0
    owner: str = ""

    @property
    def called(self) -> str:
        """The function that a program calls by it: what is decorated, in place of a decorator's code."""
        return self.owner or self.func

    @property
    def name(self) -> str:
        """The function, and where it goes on: 'forward, resumed at model.py:7'."""
        if self.file.startswith(GENERATED):
            return "backward (compiled autograd)" if self.id.startswith("!") else "generated graph"
        if not self.func:
            return f"frame {self.id}"
        return f"{self.called}, resumed at {place(self.file, self.resume)}" if self.resume else self.called

    @property
    def place(self) -> str:
        """Where its code begins, or goes on: 'model.py:7 (Block.forward)'; '' for a graph that torch wrote."""
        generated = self.file.startswith(GENERATED)
        return "" if generated else place(self.file, self.resume or self.line, self.called)

    @property
    def again(self) -> bool:
        """Whether it is a recompile: earlier code of its frame did not hold, and there is new code, or will be."""
        return bool(self.reasons) and self.outcome in ("graph", "empty", "unfinished")

    @property
    def executed_breaks(self) -> int | None:
        """How often it met its graph break: whenever it ran, where it ends in one."""
        return None if self.runs is None else self.runs * self.broke


@dataclass(slots=True)
class Mark:
    """One fact at one line.

    Args:
        rank: The rank.
        compile: The id of the compile.
        file: Of the line.
        line: The line; 0 where torch says none.
        func: The function that the line is in.
        kind: 'op', 'collective', 'kernel', 'inlined' (a function that was traced in its caller), 'break', 'gave-up',
            'def' (the frame that was given up), 'cause' (a line outside of it), 'error', 'recompile', 'limit', 'split'
            (DDP cuts the graph), 'symbol' (a size in the graph that may change), 'unfinished'.
        stage: 'dynamo', 'forward' or 'backward', of operators and kernels.
        name: The operator, the kernel, the collective, or the reason in words.
        text: An operator's type such as 'f32[4, 16]', what a symbol stands for, or torch's explanation of a break.
        hints: What torch suggests; of a collective its group's name; of a symbol its guards.
        via: 'file:line' where torch itself has the fact, when that is another line.
        exact: False where the line was worked out from the text of the source.
        chain: Of a break, the calls from that line to where it is: (file, line, func), outermost first. Where the line
            is a library's, and all of these are, those from the program's line that called the library.
        report: Of a break, all that torch says of it, but for stacks.
    """

    rank: int
    compile: str
    file: str
    line: int
    func: str
    kind: str
    stage: str = ""
    name: str = ""
    text: str = ""
    hints: tuple[str, ...] = ()
    via: str = ""
    exact: bool = True
    chain: tuple[tuple[str, int, str], ...] = ()
    report: str = ""

    @property
    def place(self) -> str:
        """Its line in words: 'model.py:12 (Block.forward)'."""
        return place(self.file, self.line, self.func)

    def without_paths(self) -> Mark:
        """The same without full paths in torch's sentences: fit for a report that leaves the machine."""
        hints = tuple(map(rewrite, self.hints))
        return replace(self, name=rewrite(self.name), text=rewrite(self.text), hints=hints)

    @property
    def cause(self) -> tuple[str, int, str]:
        """The program's innermost line that led to a break, also in a function that was inlined: (file, line, func)."""
        inner = [frame for frame in self.chain if not is_library(frame[0])]
        return inner[-1] if inner else (self.file, self.line, self.func)


@dataclass(slots=True)
class Collective:
    """A collective that ran in the marked forwards: calls of one kind from one line.

    Args:
        rank: The rank.
        compile: The id of the compile in whose graph it stands; '' for an eager one.
        name: The operation, the same for all its spellings: 'all_reduce'.
        group: The group's name and members, such as '3: 0, 1'; '' where that is not known.
        shapes: Of its input, such as '4x16'; '' where they were not recorded.
        dtype: Of its input, such as 'float32'; '' where torch's flight recorder has no record of the call.
        file: Of the line that called it; '' where that is not known.
        line: The line; 0 where it is not known.
        func: The function of that line.
        exact: False where the line was worked out.
        compiled: Whether it ran as a part of compiled code. In a backward that may be, and `compile` does not say of
            which; its line is the one that called the backward.
        runs: How often.
    """

    rank: int
    compile: str
    name: str
    group: str = ""
    shapes: str = ""
    dtype: str = ""
    file: str = ""
    line: int = 0
    func: str = ""
    exact: bool = True
    compiled: bool = False
    runs: int = 1


@dataclass(slots=True)
class Range:
    """Something that ran, as the profiler saw it. Times are microseconds since `Tables.origin_ns`.

    Args:
        rank: The rank.
        forward: The number of the marked forward or step that it belongs to; -1 for none.
        kind: 'forward', 'region', 'compiled', 'lookup', 'entry', 'compile', 'op', 'dispatch', 'collective', 'wait',
            'transfer' or 'kernel'.
        name: The profiler's name.
        start_us, end_us: When it began and ended.
        thread: A readable name of its thread or stream: 'main', 'autograd', 'gloo 2', 'stream 7'.
        depth: How many ranges of its thread it lies in.
        compile: The id of the compile whose code it belongs to; '' for none.
        shapes: Of its inputs, such as '4x8, 8x8', where they were recorded.
        group: Of a collective, as in `Collective`.
        file, line, func: Of a collective in a marked forward, as in `Collective`.
    """

    rank: int
    forward: int
    kind: str
    name: str
    start_us: float
    end_us: float
    thread: str = "main"
    depth: int = 0
    compile: str = ""
    shapes: str = ""
    group: str = ""
    file: str = ""
    line: int = 0
    func: str = ""


@dataclass(slots=True)
class Segment:
    """A piece of a forward's time on the main thread. Pieces neither overlap nor leave holes.

    Args:
        rank, forward, start_us, end_us, compile: As in `Range`.
        kind: 'compute', 'dispatch', 'collective', 'lookup', 'entry', 'python' or 'compile' (see `partition`).
        name: Of the operator or collective, or the function that it is the time of.
    """

    rank: int
    forward: int
    kind: str
    start_us: float
    end_us: float
    compile: str = ""
    name: str = ""


@dataclass(slots=True)
class Line:
    """A line of code as the trace quotes it: the file may have changed since, or be on another machine."""

    file: str
    line: int
    text: str


@dataclass(slots=True)
class GraphBreak:
    """A graph break, or a frame that was given up, with how often it was executed.

    Args:
        rank: The rank.
        compile: The id of the compile that met it.
        kind: 'break' or 'gave-up'.
        frame: The function that was compiled; where it goes on, if it is the rest of one.
        reason: What happened, in a line.
        place: The program's innermost line that led to it, 'model.py:12 (Block.forward)'.
        executed: Runs that met it, in all marked forwards; None where nothing was profiled. A frame that was given up
            runs as plain Python, and leaves nothing to count: 0.
        at_collective: Of these, those with an eager collective in what follows.
        during: Whether it was compiled in what was recorded.
    """

    rank: int
    compile: str
    kind: str
    frame: str
    reason: str
    place: str
    executed: int | None = None
    at_collective: int = 0
    during: bool = True


@dataclass(slots=True)
class Count:
    """What one rank compiled, and what it ran per forward.

    The counts of what ran are means where forwards differ, and None where nothing was profiled.

    Args:
        rank: The rank.
        compiles: Tries of Dynamo.
        graphs: Dynamo's graphs that have an operator. Torch's counter `unique_graphs` has those without one as well.
        backend_graphs: Graphs that the backend was given.
        static_breaks: Compiles whose code ends in a graph break.
        gave_up: Frames given up.
        recompiles: Compiles, in what was recorded, of frames whose earlier code did not hold.
        forwards: Marked forwards or steps; 1 where a whole block or profile counts as one.
        regions: Runs of compiled code.
        breaks: Graph breaks that were executed.
        at_collective: Of these, those with an eager collective in what follows.
        collectives: Collectives that ran, eager and compiled ones; messages between two ranks are none.
        lookups: Searches of Dynamo's cache.
        graph_runs: Runs of graphs, as the backend was given them.
    """

    rank: int
    compiles: int = 0
    graphs: int = 0
    backend_graphs: int = 0
    static_breaks: int = 0
    gave_up: int = 0
    recompiles: int = 0
    forwards: int = 0
    regions: float | None = None
    breaks: float | None = None
    at_collective: float | None = None
    collectives: float | None = None
    lookups: float | None = None
    graph_runs: float | None = None


class Table(list[Row], Generic[Row]):
    """Rows of one kind, in the order in which they happened.

    >>> rows = Table(Compile, [Compile(0, "0/0", func="step")])
    >>> rows[0].func, rows.columns[:2]
    ('step', ['rank', 'id'])
    """

    def __init__(self, kind: type[Row], rows: Iterable[Row] = ()) -> None:
        super().__init__(rows)
        self.kind = kind

    @property
    def columns(self) -> list[str]:
        """The names of the columns, also where there is no row."""
        return [one.name for one in fields(self.kind)]  # type: ignore[arg-type]

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts, fit for JSON."""
        columns = self.columns  # what they hold cannot change, so that none is copied
        return [{name: getattr(row, name) for name in columns} for row in self]

    def frame(self) -> Any:
        """The rows as a pandas DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame(self.dicts(), columns=self.columns)


NAMES = ("compiles", "marks", "collectives", "ranges", "segments", "code")


@dataclass
class Tables:
    """What is known of a run.

    Args:
        compiles, marks, collectives, ranges, segments, code: The tables.
        torch: The version of torch that wrote the trace; '' where it does not say.
        notes: What a reader has to know about gaps.
        label: The backend and device, such as 'gloo · cpu'; '' for no process group, or a trace.
        origin_ns: The time from which the tables count, in ns of `time.monotonic_ns()`.
        clock: A name for the machine's clock: ranks with one name share it.
        profiled: The forwards that were marked, by rank; empty where nothing was profiled.
    """

    compiles: Table[Compile] = field(default_factory=lambda: Table(Compile))
    marks: Table[Mark] = field(default_factory=lambda: Table(Mark))
    collectives: Table[Collective] = field(default_factory=lambda: Table(Collective))
    ranges: Table[Range] = field(default_factory=lambda: Table(Range))
    segments: Table[Segment] = field(default_factory=lambda: Table(Segment))
    code: Table[Line] = field(default_factory=lambda: Table(Line))
    torch: str = ""
    notes: list[str] = field(default_factory=list)
    label: str = ""
    origin_ns: int = 0
    clock: str = ""
    profiled: dict[int, int] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        rows: tuple[Any, ...] = (*self.compiles, *self.collectives, *self.ranges)
        return sorted({row.rank for row in rows} | set(self.profiled))

    @property
    def breaks(self) -> Table[GraphBreak]:
        """Every graph break and every frame given up, in the order of the compiles that met it."""
        return Table(GraphBreak, (row for row, _, _ in self.met()))

    def met(self) -> Iterator[tuple[GraphBreak, Mark, Compile]]:
        """Every row of `breaks`, with its fact and the compile that met it."""
        compiles = {(c.rank, c.id): c for c in self.compiles}
        frames = {(m.rank, m.compile): m for m in self.marks if m.kind == "def"}
        for m in self.marks:
            c = compiles.get((m.rank, m.compile))
            if c is None or m.kind not in ("break", "gave-up", "cause", "limit"):
                continue
            if m.kind == "limit" and c.outcome != "gave-up":
                continue
            reason, frame = m.name, frames.get((m.rank, m.compile))
            if frame is not None and frame.name != m.name:
                reason = f"{frame.name}, after: {m.name}"
            if m.kind == "limit":
                reason = f"recompile limit: {m.name}"
            kind = "break" if m.kind == "break" else "gave-up"
            counts = (c.executed_breaks, c.at_collective, c.during)
            yield GraphBreak(m.rank, c.id, kind, c.name, reason, place(*m.cause), *counts), m, c

    @property
    def counts(self) -> Table[Count]:
        """What each rank compiled and ran, added up. An executed break is one of `Compile.executed_breaks`.

        Runs come from the profiler's names of regions alone. Code whose compile ended in a break meets that break
        whenever it runs, so the executed breaks are the runs of those compiles. A break in a function that was inlined
        breaks its caller as well: that makes two compiles and two breaks. Of four disabled collectives in a block, let
        two be in a norm's `forward` and two in the block's own: a block has 9 regions and 6 breaks, and 4 of these
        stand directly at a collective.
        """
        return Table(Count, (self._count(rank) for rank in self.ranks))

    def of_ranks(self, ranks: Iterable[int]) -> Tables:
        """The rows of some ranks; what belongs to none stays."""
        wanted = set(ranks)
        rows: dict[str, Table[Any]] = {name: getattr(self, name) for name in NAMES if name != "code"}
        chosen = {
            name: Table(row.kind, [one for one in row if one.rank in wanted]) for name, row in rows.items()
        }
        profiled = {rank: n for rank, n in self.profiled.items() if rank in wanted}
        rest = {one.name: getattr(self, one.name) for one in fields(Tables)}
        return Tables(**rest | chosen | {"profiled": profiled})

    def _count(self, rank: int) -> Count:
        mine = [c for c in self.compiles if c.rank == rank]
        row = Count(rank, len(mine))
        row.graphs = sum(c.operators > 0 for c in mine)
        row.backend_graphs = sum(c.graphs for c in mine)
        row.static_breaks = sum(c.broke for c in mine)
        row.gave_up = sum(c.outcome == "gave-up" for c in mine)
        row.recompiles = sum(c.again and c.during for c in mine)
        if rank in self.profiled:
            row.forwards = self.profiled[rank]

            def each(total: int) -> float:
                mean = total / max(row.forwards, 1)
                return int(mean) if mean == int(mean) else mean

            inside = [one.kind for one in self.ranges if one.rank == rank and one.forward >= 0]
            called = [c for c in self.collectives if c.rank == rank and c.name not in POINT_TO_POINT]
            row.regions = each(sum(c.runs or 0 for c in mine))
            row.breaks = each(sum(c.executed_breaks or 0 for c in mine))
            row.at_collective = each(sum(c.at_collective for c in mine))
            row.collectives = each(sum(c.runs for c in called))
            row.lookups = each(inside.count("lookup"))
            row.graph_runs = each(sum((c.runs or 0) * c.graphs for c in mine))
        return row


# a message between two ranks, in which no other rank of the group takes part
POINT_TO_POINT = ("send", "recv", "recv_any_source")


def merge(runs: Mapping[int, Tables] | Iterable[Tables]) -> Tables:
    """Put the tables of several ranks together, on one clock.

    Args:
        runs: Of different ranks; what `ranks.run` gives as well.

    Returns:
        New tables, whose times count from the earliest origin. A line of code that several ranks quote is there once.

    Raises:
        ValueError: There is none, or one rank is in two of them.
    """
    parts = list(runs.values() if isinstance(runs, Mapping) else runs)
    if not parts:
        raise ValueError("there is nothing to merge: give the tables of one rank or more")
    taken = set[int]()
    for one in parts:
        if twice := taken.intersection(one.ranks):
            raise ValueError(f"rank {min(twice)} is in two of the tables: merge those of different ranks")
        taken.update(one.ranks)
    first = parts[0]
    labels, clocks = ({getattr(one, name) for one in parts} for name in ("label", "clock"))
    made = Tables(
        torch=next((one.torch for one in parts if one.torch), ""),
        label=first.label if len(labels) == 1 else "",
        clock=first.clock if len(clocks) == 1 else "",
        origin_ns=min(one.origin_ns for one in parts),
    )
    for one in parts:
        later = (one.origin_ns - made.origin_ns) / 1e3 if made.clock else 0.0
        made.compiles += one.compiles
        made.marks += one.marks
        made.collectives += one.collectives
        for name in ("ranges", "segments"):
            moved = (
                replace(r, start_us=r.start_us + later, end_us=r.end_us + later) for r in getattr(one, name)
            )
            getattr(made, name).extend(moved)
        known = {(row.file, row.line) for row in made.code}
        made.code += [row for row in one.code if (row.file, row.line) not in known]
        made.notes += [note for note in one.notes if note not in made.notes]
        made.profiled |= one.profiled
    return made

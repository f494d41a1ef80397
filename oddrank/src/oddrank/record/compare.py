"""What differs: the first thing that ranks did differently, and facts at lines that two runs or ranks do not share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from oddrank.places import is_library, label, place
from oddrank.record.tables import POINT_TO_POINT, Mark, Range, Tables
from oddrank.record.timeline import collective_op

__all__ = ["Change", "Difference", "Step", "break_times", "diff", "first_difference"]


@dataclass(frozen=True)
class Step:
    """One thing that a rank did: enter a region, execute a break, or call a collective.

    Args:
        kind: 'region', 'break' or 'collective'.
        name: The function, the reason, or the operation and its shapes.
        start_us, end_us: As in `Range`.
        file, line, func: Where; '' and 0 where that is not known.
        signature: What has to be equal on all ranks.
        then: The next step in the program's own code, where this one is in a library.
        breaks: Of a region, the graph break in which it ends, with its place.
    """

    kind: str
    name: str
    start_us: float
    end_us: float
    file: str = ""
    line: int = 0
    func: str = ""
    signature: str = field(default="", repr=False)
    then: str = ""
    breaks: str = ""

    @property
    def place(self) -> str:
        """Its place in words; '' for unknown."""
        return place(self.file, self.line or None, self.func)

    @property
    def own(self) -> bool:
        """Whether its place is in the program."""
        return bool(self.file) and not is_library(self.file)

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place and self.place not in self.name else ""
        return f"{self.kind} {self.name}{at}" + (f", then {self.then}" if self.then else "")


@dataclass(frozen=True)
class Difference:
    """The place where ranks part.

    Args:
        forward: The number of the forward.
        index: The number of steps in it that the ranks have in common.
        steps: What each rank did next; None for nothing.
        odd: The ranks that differ from most, or from the lowest rank where there is no majority.
    """

    forward: int
    index: int
    steps: dict[int, Step | None]
    odd: list[int]

    def __str__(self) -> str:
        said: dict[str, list[int]] = {}
        for rank, step in self.steps.items():
            said.setdefault("nothing more" if step is None else str(step), []).append(rank)
        whole = [f"rank {' and '.join(map(str, ranks))}: {what}" for what, ranks in said.items()]
        if len(whole) == 1:
            # alike by name: what differs is inside
            odd = " and ".join(map(str, self.odd))
            whole = [f"{whole[0]}, with another graph or other shapes on rank {odd}"]
            broke = {rank: step.breaks for rank, step in self.steps.items() if step and step.breaks}
            if 0 < len(broke) < len(self.steps):
                whole[0] += (
                    f"; it breaks on rank {' and '.join(map(str, broke))} only: {next(iter(broke.values()))}"
                )
        return f"forward {self.forward}, step {self.index}: " + "; ".join(whole)


def first_difference(tables: Tables) -> Difference | None:
    """Find the first thing that ranks did differently.

    Compared in order, forward by forward: regions (function and graph, whatever their ids), breaks (reason and place)
    and collectives (operation, and shapes where they were recorded).

    Args:
        tables: Of several ranks.

    Returns:
        The difference; None where the ranks did the same, or there is one rank.
    """
    steps = {rank: _steps(rank, tables) for rank in tables.ranks}
    if len(steps) < 2:
        return None
    for forward in sorted({f for mine in steps.values() for f in mine}):
        here = {rank: mine.get(forward, []) for rank, mine in steps.items()}
        for index in range(max(map(len, here.values()))):
            signs = {rank: mine[index].signature if index < len(mine) else "" for rank, mine in here.items()}
            if len(set(signs.values())) > 1:
                seen = list(signs.values())
                usual = max(seen, key=seen.count)  # the first one where there is no majority
                odd = [rank for rank, sign in signs.items() if sign != usual]
                return Difference(
                    forward, index, {rank: _next(mine[index:]) for rank, mine in here.items()}, odd
                )
    return None


def _next(steps: Sequence[Step]) -> Step | None:
    """The first of a rank's steps, with the one in the program's own code that follows it."""
    if not steps or steps[0].own or not steps[0].file:
        return steps[0] if steps else None
    return replace(steps[0], then=str(next((step for step in steps if step.own), "")))


def _steps(rank: int, tables: Tables) -> dict[int, list[Step]]:
    """Everything one rank did on its main thread that the others should have done as well, by forward."""
    compiles = {c.id: c for c in tables.compiles if c.rank == rank}
    breaks = {m.compile: m for m in tables.marks if m.rank == rank and m.kind == "break"}
    mine = [r for r in tables.ranges if r.rank == rank and r.thread == "main" and r.forward >= 0]
    found: dict[int, list[Step]] = {}
    for r in sorted(mine, key=lambda r: r.start_us):
        steps, times = found.setdefault(r.forward, []), (r.start_us, r.end_us)
        if r.kind == "region":
            c = compiles.get(r.compile)
            name = c.name if c else r.name
            file, line, func = (c.file, c.resume or c.line, c.func) if c else ("", 0, "")
            b = breaks.get(r.compile)  # which it will execute, after its graph
            after = [Step("break", b.name, *times, b.file, b.line, b.func)] if b else []
            sign = f"region {name} {c.digest if c else ''}"
            ends = str(after[0]).removeprefix("break ") if after else ""
            steps.append(Step("region", name, *times, file, line, func, sign, breaks=ends))
            steps += (
                replace(one, signature=f"break {label(one.file)}:{one.line} {one.name}") for one in after
            )
        elif r.kind == "collective" and collective_op(r.name) not in POINT_TO_POINT:
            name = collective_op(r.name) + (f" of {r.shapes}" if r.shapes else "")
            steps.append(Step("collective", name, *times, signature=f"collective {name}"))
    return found


def break_times(tables: Tables) -> Iterator[tuple[Range, Mark, float]]:
    """Every executed break: the run of the region that met it, the break, and when.

    A region whose compile ended in a break executes it each time it runs, when its compiled part is done.

    Yields:
        The region's range, the break, and the time as in `Range`, in microseconds.
    """
    breaks = {(m.rank, m.compile): m for m in tables.marks if m.kind == "break"}
    graphs: dict[tuple[int, str], list[Range]] = {}
    for r in tables.ranges:
        if r.kind == "compiled":
            graphs.setdefault((r.rank, r.compile), []).append(r)
    for r in tables.ranges:
        mark = breaks.get((r.rank, r.compile)) if r.kind == "region" else None
        if mark is not None:
            ran = (
                g
                for g in graphs.get((r.rank, r.compile), ())
                if r.start_us <= g.start_us and g.end_us <= r.end_us
            )
            # a region with nothing to compute before its break calls no kernel: its break is where it starts
            yield r, mark, next((g.end_us for g in ran), r.start_us)


# --- facts at lines ---

FACTS = ("break", "gave-up", "def", "error", "recompile", "limit", "split", "collective", "op")


@dataclass(frozen=True, order=True)
class Change:
    """A fact at a line that one side has more often than the other.

    Args:
        file: The short name of the file.
        func: The function.
        code: The text of the line; its number where the text is not known.
        kind, name: As in `Mark`.
        left, right: How often each side has it.
    """

    file: str
    func: str
    code: str
    kind: str
    name: str
    left: int
    right: int


def diff(a: Tables, b: Tables | None = None, ranks: tuple[int, int] | None = None) -> list[Change]:
    """Compare facts at lines: of two runs, or of two ranks of one.

    Compared are file, function, the line's text, and what Dynamo saw: breaks, errors, recompiles, collectives, and the
    operators of a frame's first compile. Numbers of lines and of compiles do not count: an edit above changes the
    first, and the second depend on what ran before. Operators of ATen and kernels do not count either.

    Args:
        a: A run.
        b: Another run of the same ranks; None compares ranks of `a`.
        ranks: Which two, of one run; None for the two lowest.

    Returns:
        What differs, by file and line; nothing where all is the same.

    Raises:
        ValueError: There is one rank only, and no other run.
    """
    if b is not None:
        left, right = _facts(a, None), _facts(b, None)
    else:
        two = ranks or tuple(a.ranks[:2])
        if len(two) < 2:
            raise ValueError("there is one rank only: give a second run, or the tables of several ranks")
        left, right = _facts(a, two[0]), _facts(a, two[1])
    keys = sorted(key for key in left | right if left[key] != right[key])
    return [Change(*key, left[key], right[key]) for key in keys]


def _facts(tables: Tables, rank: int | None) -> Counter[tuple[str, str, str, str, str]]:
    quoted = {(row.file, row.line): row.text for row in tables.code}
    found: Counter[tuple[str, str, str, str, str]] = Counter()
    first: dict[tuple[int, str], str] = {}
    for m in tables.marks:
        if (rank is not None and m.rank != rank) or m.kind not in FACTS or m.stage not in ("", "dynamo"):
            continue
        if is_library(m.file):
            continue
        if (
            m.kind in ("op", "collective", "break")
            and first.setdefault((m.rank, _frame(m.compile)), m.compile) != m.compile
        ):
            continue
        code = quoted.get((m.file, m.line), "").strip() or f"line {m.line}"
        found[label(m.file), m.func, code, m.kind, m.name] += 1
    return found


def _frame(compile_: str) -> str:
    """The frame of a compile's id; after a reset of Dynamo it is another one."""
    raw, _, again = compile_.partition(" ")
    return f"{raw.rpartition('/')[0]} {again}"

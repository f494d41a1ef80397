"""Small records made by hand: two ranks, two blocks that break, or one compiled region, with exact times."""

from __future__ import annotations

import pytest
from oddrank.record import Compile, Mark, Range, Segment, Tables

DISABLED = "Skip calling `torch.compiler.disable()`d function all_reduce"

# one block that broke: (kind, microseconds, compile id, name)
BLOCK = [
    ("lookup", 20, "1/0", ""),
    ("entry", 30, "1/0", ""),
    ("compute", 100, "1/0", "Block.forward"),
    ("python", 10, "1/0", ""),
    ("collective", 80, "1/0", "c10d::allreduce_"),
    ("lookup", 20, "2/0", ""),
    ("entry", 40, "2/0", ""),
    ("compute", 60, "2/0", "Block.forward, resumed at In [3]:9"),
    ("python", 10, "2/0", ""),
    ("collective", 90, "2/0", "c10d::allreduce_"),
    ("python", 40, "", ""),
]
STEP = [("compute", 90, "0/0", "Model.forward"), ("collective", 80, "0/0", "_c10d_functional::all_reduce_")]
INTO = [("lookup", 50, "", ""), ("entry", 30, "0/0", "")]
OUT = [("entry", 20, "0/0", "")]
CELL = "<ipython-input-3-1>"
BREAKS = [("1/0", 8), ("2/0", 12)]


def laid_out(pieces: list[tuple], rank: int, start: float, forward: int = 0) -> list[Segment]:
    found = []
    for kind, us, compile_id, name in pieces:
        found.append(Segment(rank, forward, kind, start, start + us, compile_id, name))
        start += us
    return found


def add_breaks(tables: Tables, ranks: tuple[int, ...], blocks: int) -> Tables:
    """Both parts of a block break at a collective, and the model's frame was given up for its loop."""
    for r in ranks:
        for i, line in BREAKS:
            made = Compile(r, i, CELL, line, "forward", outcome="graph", broke=True, runs=blocks)
            made.at_collective = blocks
            tables.compiles.append(made)
            tables.marks.append(Mark(r, i, CELL, line, "forward", "break", name=DISABLED))
        tables.compiles.append(Compile(r, "0/0", CELL, 20, "Model.forward", outcome="gave-up", runs=0))
        tables.marks.append(Mark(r, "0/0", CELL, 21, "Model.forward", "gave-up", name=DISABLED))
        tables.marks.append(Mark(r, "0/0", CELL, 20, "Model.forward", "def", name="graph break in loop"))
    return tables


def made_of(segments: list[Segment], label: str = "gloo · cpu") -> Tables:
    tables = Tables(label=label, profiled=dict.fromkeys({one.rank for one in segments}, 1))
    tables.segments += segments
    for rank in dict.fromkeys(one.rank for one in segments):
        tables.ranges += ranges_of([one for one in segments if one.rank == rank])
    return tables


def make(pieces: list[tuple], ranks: tuple[int, ...] = (0, 1)) -> Tables:
    return made_of([one for rank in ranks for one in laid_out(pieces, rank, 5_000.0 + 30 * rank)])


def ranges_of(segments: list[Segment]) -> list[Range]:
    """The ranges behind one rank's segments: a region is entered, what follows is compiled, a collective is one."""
    found: list[Range] = []
    opened: list[Range] = []
    inside = False
    for before, one in zip([None, *segments], segments, strict=False):

        def add(kind: str, depth: int, name: str = "", sooner: float = 0.0, one: Segment = one) -> Range:
            span = (one.start_us - sooner, one.end_us)
            found.append(Range(one.rank, one.forward, kind, name, *span, "main", depth, one.compile))
            return found[-1]

        if one.kind not in ("compute", "collective") or one.compile == "":
            inside = False
        entered = before is not None and before.kind == "entry" and one.kind == "compute"
        if entered and before.compile == one.compile != "":
            inside = True
            opened = [add("region", 1, one.name, 30), add("compiled", 2, one.name)]
        elif inside:
            for range_ in opened:
                range_.end_us = one.end_us
        if one.kind in ("collective", "lookup"):
            add(one.kind, 3 if one.kind == "collective" else 1, one.name)
    return found


@pytest.fixture
def broken():
    """Two ranks, two blocks: 4 regions, 4 breaks, 4 collectives each."""
    return add_breaks(make(BLOCK * 2), (0, 1), 2)


@pytest.fixture
def whole():
    """Two ranks, one compiled region with 4 collectives in it."""
    return make(INTO + STEP * 4 + OUT)


@pytest.fixture
def diverged():
    """Rank 1 runs only the first block: it has nothing more where rank 0 enters region 1/0 again."""
    segments = [*laid_out(BLOCK * 2, 0, 0.0), *laid_out(BLOCK, 1, 0.0)]
    return add_breaks(made_of(segments, label=""), (0, 1), 2)


@pytest.fixture
def with_transfers(broken):
    """The first fixture, with nested ranges of one collective, and transfers on gloo's thread."""
    for one in [one for one in broken.ranges if one.kind == "collective"]:
        inside = (one.start_us + 5, one.end_us - 5)
        nested = Range(one.rank, 0, "collective", "shm:all_reduce", *inside, "main", 4, one.compile)
        broken.ranges += [nested, Range(one.rank, 0, "transfer", "gloo:all_reduce", *inside, "gloo")]
    return broken


@pytest.fixture
def step():
    """A dense training step: 400 operators and 4 all-reduces, of which a typical block is the whole."""
    operators = [("compute", 10, "", "aten::mm"), ("python", 2, "", "")] * 200
    record = make([*operators, *[("collective", 50, "", "c10d::allreduce_")] * 4, *operators])
    ends = {
        r: [t for one in record.segments if one.rank == r for t in (one.start_us, one.end_us)] for r in (0, 1)
    }
    begin, end = ({r: edge(times) for r, times in ends.items()} for edge in (min, max))
    record.ranges += (Range(r, 0, "forward", "oddrank.step", begin[r], end[r]) for r in (0, 1))
    # rank 0's transfers: of the step before, of this one, and beyond its end, which is before that of rank 1
    for at in ((begin[0] - 500, begin[0] + 100), (begin[0] + 200, begin[0] + 300), (end[0] - 100, end[1])):
        record.ranges.append(Range(0, 0, "transfer", "gloo:all_reduce", *at, "gloo"))
    return record

"""Small records made by hand: two ranks, two blocks that break, or one compiled region, with exact times."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

SEGMENTS = ["rank", "forward", "kind", "start_us", "end_us", "compile_id", "name"]
EVENTS = ["rank", "forward", "kind", "name", "start_us", "end_us", "thread", "depth", "compile_id", "place"]
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
BREAKS = [("1/0", "In [3]:8 (forward)"), ("2/0", "In [3]:12 (forward)")]


def laid_out(pieces: list[tuple], rank: int, start: float, forward: int = 0) -> list[tuple]:
    rows = []
    for kind, us, compile_id, name in pieces:
        rows.append((rank, forward, kind, start, start + us, compile_id, name))
        start += us
    return rows


def breaks_table(ranks: tuple[int, ...], blocks: int) -> pd.DataFrame:
    rows = [(r, i, "break", "forward", DISABLED, place, blocks, blocks) for r in ranks for i, place in BREAKS]
    skipped = "Model.forward", "graph break in loop", "In [3]:20 (Model.forward)"
    rows += [(r, "0/0", "skip", *skipped, 0, 0) for r in ranks]
    columns = ["rank", "compile_id", "kind", "name", "reason", "place", "executed", "at_collective"]
    return pd.DataFrame(rows, columns=columns)


def make(pieces: list[tuple], ranks: tuple[int, ...] = (0, 1), breaks: pd.DataFrame | None = None):
    rows = [row for rank in ranks for row in laid_out(pieces, rank, 5_000.0 + 30 * rank)]
    segments = pd.DataFrame(rows, columns=SEGMENTS)
    return SimpleNamespace(
        segments=segments,
        events=events_of(segments),
        breaks=breaks_table((), 0) if breaks is None else breaks,
        label="gloo · cpu",
    )


def events_of(segments: pd.DataFrame) -> pd.DataFrame:
    """The events behind segments: a region is entered, what follows is compiled, and each collective is one."""
    rows = []
    for rank, mine in segments.groupby("rank"):
        mine, inside = mine.to_dict("records"), False
        for before, row in zip([None, *mine], mine, strict=False):
            call = (rank, row["forward"])
            if row["kind"] not in ("compute", "collective") or row["compile_id"] == "":
                inside = False
            entered = before is not None and before["kind"] == "entry" and row["kind"] == "compute"
            if entered and before["compile_id"] == row["compile_id"] != "":
                inside = True
                for kind, depth, sooner in (("region", 1, 30), ("compiled", 2, 0)):
                    span = [row["start_us"] - sooner, row["end_us"]]
                    rows.append([*call, kind, row["name"], *span, "main", depth, row["compile_id"], ""])
                opened = rows[-2:]
            elif inside:
                for one in opened:
                    one[5] = row["end_us"]
            if row["kind"] == "collective":
                span = (row["start_us"], row["end_us"])
                rows.append([*call, "collective", row["name"], *span, "main", 3, row["compile_id"], ""])
            elif row["kind"] == "lookup":
                span = (row["start_us"], row["end_us"])
                rows.append([*call, "lookup", "", *span, "main", 1, row["compile_id"], ""])
    return pd.DataFrame(rows, columns=EVENTS)


@pytest.fixture
def broken():
    """Two ranks, two blocks: 4 regions, 4 breaks, 4 collectives each, no events."""
    return make(BLOCK * 2, breaks=breaks_table((0, 1), 2))


@pytest.fixture
def whole():
    """Two ranks, one compiled region with 4 collectives in it."""
    return make(INTO + STEP * 4 + OUT)


@pytest.fixture
def dense_whole():
    """As many collectives as in the forty blocks, in one region."""
    return make(INTO + STEP * 80 + OUT)


@pytest.fixture
def dense():
    """Forty of those blocks: 440 segments and 80 collectives a rank."""
    return make(BLOCK * 40, breaks=breaks_table((0, 1), 40))


@pytest.fixture
def diverged():
    """Rank 1 runs only the first block: it has nothing more where rank 0 enters region 1/0 again."""
    segments = pd.DataFrame([*laid_out(BLOCK * 2, 0, 0.0), *laid_out(BLOCK, 1, 0.0)], columns=SEGMENTS)
    return SimpleNamespace(
        segments=segments, events=events_of(segments), breaks=breaks_table((0, 1), 2), label=""
    )


@pytest.fixture
def with_transfers(broken):
    """The first fixture, with nested ranges of one collective, and transfers on gloo's thread."""
    rows = []
    for row in broken.events[broken.events["kind"] == "collective"].itertuples():
        inside = (row.start_us + 5, row.end_us - 5)
        rows.append((row.rank, 0, "collective", "shm:all_reduce", *inside, "main", 4, row.compile_id, ""))
        rows.append((row.rank, 0, "transfer", "gloo:all_reduce", *inside, "gloo", 0, "", ""))
    broken.events = pd.concat([broken.events, pd.DataFrame(rows, columns=EVENTS)], ignore_index=True)
    return broken


@pytest.fixture
def step():
    """A dense training step: 400 operators and 4 all-reduces, of which a typical block is the whole."""
    operators = [("compute", 10, "", "aten::mm"), ("python", 2, "", "")] * 200
    record = make([*operators, *[("collective", 50, "", "c10d::allreduce_")] * 4, *operators])
    rows = []
    for row in record.segments[record.segments["kind"] == "collective"].itertuples():
        rows.append((row.rank, 0, "collective", row.name, row.start_us, row.end_us, "main", 1, "", ""))
    begin, end = (record.segments.groupby("rank")[edge] for edge in ("start_us", "end_us"))
    begin, end = begin.min(), end.max()
    rows += [(r, 0, "forward", "labkit.step", begin[r], end[r], "main", 0, "", "") for r in (0, 1)]
    # rank 0's transfers: of the step before, of this one, and beyond its end, which is before that of rank 1
    for at in ((begin[0] - 500, begin[0] + 100), (begin[0] + 200, begin[0] + 300), (end[0] - 100, end[1])):
        rows.append((0, 0, "transfer", "gloo:all_reduce", *at, "gloo", 0, "", ""))
    record.events = pd.DataFrame(rows, columns=EVENTS)
    return record

"""`labkit.record()` in one process: counts by execution, names, places, failures."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit import torch_compat

COUNTS = ["regions", "breaks", "at_collective", "collectives", "lookups", "graphs", "static_breaks", "skips"]


def line_of(function, text: str) -> int:
    """The line of the test's own file where some text of a function stands."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def places_of(word: str) -> str:
    """The place in the model's file that a comment marks, as labkit writes it."""
    lines = (Path(__file__).parent / "conftest.py").read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if f"# {word} collective" in line)
    return f"conftest.py:{number} ({'Norm' if word.startswith('norm') else 'Block'}.forward)"


def counted(rec) -> list[float]:
    return rec.counts.loc[0, COUNTS].tolist()


@pytest.mark.parametrize(
    ("gate", "backend", "expected"),
    [
        ("disabled", "eager", [18, 12, 8, 8, 18, 7, 5, 1]),
        ("functional", "eager", [1, 0, 0, 8, 1, 1, 0, 0]),
        ("in place", "eager", [1, 0, 0, 8, 1, 1, 0, 0]),
        ("in place", None, [0, 0, 0, 8, 0, 0, 0, 0]),
        ("functional", None, [0, 0, 0, 8, 0, 0, 0, 0]),
    ],
)
def test_two_blocks_are_counted_by_execution(model, gate, backend, expected):
    m = model(gate, backend=backend)
    m.run(m.x)
    with labkit.record() as rec:
        m.run(m.x)
    assert counted(rec) == expected


def test_forty_blocks_with_disabled_collectives(model):
    counters = torch_compat.require("torch._dynamo.utils").counters
    counters.clear()
    m = model("disabled", blocks=40)
    m.run(m.x)
    with labkit.record() as rec:
        m.run(m.x)
    # 160 collectives; the norms' breaks break the block's frame as well; static counters do not see any of that
    assert counted(rec) == [360, 240, 160, 160, 360, 7, 5, 1]
    assert counters["stats"]["unique_graphs"] == 7
    assert sum(counters["graph_break"].values()) == 5


@pytest.mark.parametrize(("gate", "expected"), [("disabled", [18, 12, 8, 8]), ("functional", [1, 0, 0, 8])])
def test_inductor_runs_are_counted_the_same(model, gate, expected):
    m = model(gate, backend="inductor")
    m.run(m.x)
    with labkit.record() as rec:
        for _ in range(2):
            with rec.forward():
                m.run(m.x)
    assert counted(rec)[:4] == expected
    compiled = rec.events[rec.events["kind"] == "compiled"]
    assert len(compiled) == 2 * expected[0]
    calls = rec.events[rec.events["kind"] == "collective"]
    assert len(calls) == 16
    waits = rec.segments[rec.segments["name"] == "_c10d_functional::wait_tensor"]
    assert set(waits["kind"]) <= {"collective"}


def test_breaks_name_reason_place_and_executions(model):
    m = model("disabled")
    m.run(m.x)
    with labkit.record() as rec:
        m.run(m.x)
    breaks = rec.breaks[rec.breaks["kind"] == "break"]
    assert breaks["reason"].str.contains("disable").all() and breaks["reason"].str.endswith("in_place").all()
    by_place = breaks.groupby("place")[["executed", "at_collective"]].sum()
    at = {word: places_of(word) for word in ("norm's", "attention's", "MLP's")}
    # every norm breaks twice, in the block's frame and in its own; only the norm's own stands at the collective
    assert by_place.loc[at["norm's"]].tolist() == [8, 4]
    assert by_place.loc[at["attention's"]].tolist() == by_place.loc[at["MLP's"]].tolist() == [2, 2]
    skip = rec.breaks[rec.breaks["kind"] == "skip"].iloc[0]
    assert skip["name"] == "Model.forward" and skip["executed"] == 0 and "loop" in skip["reason"]
    eager = rec.events[(rec.events["kind"] == "collective")]
    assert sorted(eager["place"]) == sorted(list(by_place.index) * 4)[-8:] or set(eager["place"]) == set(
        by_place.index
    )


def test_regions_are_named_with_their_class_and_resumes_with_their_place(model):
    m = model("disabled")
    m.run(m.x)
    with labkit.record() as rec:
        m.run(m.x)
    names = rec.graphs["name"].tolist()
    assert names[:2] == ["Block.forward", "Norm.forward"]
    assert all(", resumed at conftest.py:" in name for name in names[2:])
    assert rec.graphs["calls"].tolist() == [2, 4, 4, 2, 2, 2, 2]
    regions = rec.events[rec.events["kind"] == "region"]
    assert set(regions["name"]) == set(names) and regions["place"].str.contains(":").all()


def test_graphs_count_operators_and_collectives(model):
    m = model("functional")
    with labkit.record() as rec:
        m.run(m.x)
    graph = rec.graphs.iloc[0]
    assert (graph["name"], graph["collectives"], graph["calls"]) == ("Model.forward", 8, 1)
    assert graph["ops"] > 16 and "_c10d_functional.all_reduce" in graph["code"]
    assert "/" + "site-packages" not in graph["code"]


def test_no_table_and_no_text_holds_a_full_path_or_an_address(model):
    m = model("disabled", backend="inductor")
    with labkit.record(stages=True) as rec:
        m.run(m.x)
    for frame in rec.tables.values():
        for column in frame.columns[frame.dtypes == "str"]:
            if column != "inductor_code":
                whole = "\n".join(frame[column])
                assert sys.prefix not in whole and __file__ not in whole and " at 0x" not in whole, column


def test_a_break_in_a_loop_gives_the_frame_up():
    def loop(x):
        for _ in range(3):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    run = torch.compile(loop, backend="eager")
    with labkit.record() as cold:
        run(torch.ones(3))
    with labkit.record() as warm:
        run(torch.ones(3))
    for rec, during in ((cold, True), (warm, False)):
        assert counted(rec)[:3] == [0, 0, 0] and counted(rec)[-1] == 1
        row = rec.breaks.iloc[0]
        assert (row["kind"], row["name"], row["executed"], row["during"]) == ("skip", "loop", 0, during)
        assert row["reason"].startswith("graph break in loop") and "graph_break()" in row["reason"]
        assert row["place"] == f"test_record.py:{line_of(loop, 'graph_break()')} (loop)"
    torch_compat.dynamo_reset()
    with labkit.record() as after:
        torch.ones(3).sin()
    assert after.breaks.empty  # a reset forgets what was given up


def test_segments_are_exclusive_and_add_up_to_the_forward(model):
    m = model("disabled")
    m.run(m.x)
    with labkit.record() as rec:
        for _ in range(3):
            with rec.forward():
                m.run(m.x)
    forwards = rec.events[rec.events["kind"] == "forward"].set_index("forward")
    for number, mine in rec.segments.groupby("forward"):
        assert (mine["start_us"].iloc[1:].to_numpy() == mine["end_us"].iloc[:-1].to_numpy()).all()
        whole = forwards.loc[number, "end_us"] - forwards.loc[number, "start_us"]
        assert (mine["end_us"] - mine["start_us"]).sum() == pytest.approx(whole, abs=0.01)
    total = rec.breakdown.groupby("forward")["us"].sum()
    assert total.tolist() == pytest.approx((forwards["end_us"] - forwards["start_us"]).tolist(), abs=0.01)


def test_what_runs_outside_a_mark_is_not_counted(model):
    m = model("disabled")
    m.run(m.x)
    with labkit.record() as rec:
        m.run(m.x)
        with rec.forward():
            m.run(m.x)
    assert counted(rec) == [18, 12, 8, 8, 18, 7, 5, 1]
    assert rec.graphs["calls"].tolist() == [2, 4, 4, 2, 2, 2, 2]
    assert (rec.events["forward"] == -1).sum() > 18


def test_async_collectives_barriers_and_broadcasts_are_collectives(fake_group):
    def several(x):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.barrier()
        dist.broadcast(x, 0)
        return x + 1

    run = torch.compile(several, backend="eager")
    run(torch.ones(2))
    with labkit.record() as rec:
        run(torch.ones(2))
    calls = rec.events[rec.events["kind"] == "collective"]
    assert calls["name"].tolist() == ["c10d::allreduce_", "c10d::barrier", "c10d::broadcast_"]
    assert rec.counts.loc[0, "at_collective"] == 3
    assert rec.breaks["reason"].str.contains("async_op=True").any()
    assert rec.breaks["place"].str.endswith("(several)").all()


def test_the_text_and_the_page_say_the_counts(model):
    m = model("disabled")
    m.run(m.x)
    with labkit.record() as rec:
        m.run(m.x)
    assert repr(rec) == (
        "Record(rank 0: 1 forward, each with 18 regions, 12 breaks (8 at a collective), 8 collectives;"
        " 7 graphs, 0 recompiles)"
    )
    page = rec._repr_html_()
    assert page.count("<table") == 2 and "Norm.forward" in page and "host only" in page


def test_records_of_several_ranks_are_drawn_without_being_merged_first():
    records = []
    for rank in (0, 1):
        with labkit.record() as rec, rec.forward():
            torch.ones(4).sin()
        for table in rec.tables.values():
            table["rank"] = rank
        records.append(rec)
    said = labkit.views.strip_text(records).splitlines()
    assert [line.partition(":")[0] for line in said] == ["rank 0", "rank 1"]

"""Rank 0 outside a mesh: counts, plans and health by group; and mistakes with groups, under each defence."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the operators, also the older ones

import labkit
from course.mesh import figures
from course.shared.outcomes import judge
from labkit import Report, lessons, timing
from labkit.ranks import RankError
from labkit.timing import Times

LESSON = "11_mesh_or_world"
FORMS = ("outside", "outside, with an answer", "outside, with a late answer")
DRILLS = ("drill-setup", "drill-a", "drill-b")


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", timeout=240, stall=1.5, quiet=True) as ranks:
        yield ranks


def run(three, *ids, **names):
    """What these cells define, and the reports that they make, by name."""
    reports = {}

    def made(name, *rest, **more):
        reports[name] = Report(name, *rest, **more)
        return reports[name]

    given = dict(labkit=labkit, pd=pd, judge=judge, RankError=RankError, Report=made, ranks=three)
    given |= dict(textwrap=textwrap, timing=timing, Times=Times)
    given |= dict(calls_by_group=figures.calls_by_group, reveal=lambda *answer: "measured")
    return lesson_cells.run(LESSON, *ids, **lesson_cells.copied(LESSON) | given | names), reports


@pytest.fixture(scope="module")
def report(three) -> Report:
    ids = ("serve", "figure", "stage0", "compare-run", "cost-run")
    return run(three, *ids, REQUESTS=[2, 4, 6, 1], OWN_MS=[0, 1], MESH_MS=0, ROUNDS=8)[1]["mesh_or_world"]


@pytest.fixture(scope="module")
def drills(three) -> Report:
    some = ["no_group", "divisor", "stays_away", "meets_the_plan", "half_made"]
    # the first collective waits for the compile of the slowest rank
    return run(three, *DRILLS, "matrix", "matrix-said", MISTAKES=some, LIMIT_S=10)[1]["wrong_group"]


@pytest.mark.slow
def test_rank_0_calls_no_collective_of_the_mesh_whatever_it_compiles(report):
    found = report.tables["counts"].set_index(["form", "rank"])
    assert list(found["on the mesh"]) == 2 * [0, 16, 16] and list(found["on the world"]) == 6 * [9]
    assert list(found.loc["driver", "graphs"]) == [0, 3, 3]  # 2 rows; any number from 2; 1 row
    assert list(found.loc["stage 0", "graphs"]) == [3, 3, 3]


@pytest.mark.slow
def test_the_same_counts_get_two_verdicts(report):
    said = report.tables["health"].query("rank == 1").set_index("form")
    for form in ("driver", "stage 0"):
        assert said.loc[form, "counts, mesh"] == said.loc[form, "operations, mesh"] == "alike"
        assert said.loc[form, "operations, world"] == "different"
    assert said.loc["driver", "counts, world"] == "different", "a false alarm"
    assert said.loc["stage 0", "counts, world"] == "alike", "by luck"


@pytest.mark.slow
def test_every_form_is_timed(report):
    forms = [f"{form}, {ms} ms" for form in FORMS for ms in (0, 1)]
    assert set(report.frame["variant"]) == set(forms)
    assert report.tables["samples"].groupby(["variant", "rank"]).size().eq(8).all()
    assert [(verdict.a, verdict.b) for verdict in report.verdicts] == [
        (forms[1], forms[0]),
        (forms[3], forms[2]),
        (forms[5], forms[4]),
    ]


@pytest.mark.slow
def test_its_figures_say_in_words_what_they_show(report, tmp_path):
    again = Report.load(report.save(tmp_path))
    assert "Every mesh rank called 16 collectives of the mesh, rank 0 none" in again.figure().summary


def test_ranks_that_call_a_collective_together_share_a_column():
    rows = [
        (0, 0, "world"),
        (0, 1, "world"),
        (1, 0, "world"),
        (1, 1, "mesh"),
        (1, 2, "world"),
        (2, 0, "world"),
    ]
    drawn = figures.calls_by_group(pd.DataFrame(rows, columns=["rank", "number", "group"]))
    at = {(round(box.get_y()), round(box.get_x())) for box in drawn.axes[-1].patches}
    assert {(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)} == at
    outside = [text.get_text() for text in drawn.axes[-1].texts]
    assert outside == 3 * [figures.OUTSIDE], "rank 0 in the mesh's column, rank 2 in the mesh's and the last"


def test_an_operation_is_a_letter_and_a_request_is_written_where_it_begins():
    rows = [
        (rank, number, "world", "broadcast", of)
        for rank in (0, 1)
        for number, of in enumerate(("2 rows", "2 rows", "stop"))
    ]
    rows.insert(5, (1, 2, "mesh", "all_reduce", "2 rows"))
    rows[-1] = (1, 3, *rows[-1][2:])
    columns = ["rank", "number", "group", "operation", "request"]
    written = [text for text in figures.calls_by_group(pd.DataFrame(rows, columns=columns)).axes[-1].texts]
    assert [text.get_text() for text in written[:2]] == ["2 rows", "stop"]
    assert [int(text.get_position()[0]) for text in written[:2]] == [0, 3]
    assert sorted(text.get_text() for text in written[2:]) == ["B"] * 6 + ["R", figures.OUTSIDE]


@pytest.mark.slow
def test_the_mesh_computes_what_one_process_would(three):
    """Four layers on the mesh's two ranks against the same layers, whole."""
    assert max(three.run(_largest_error).values()) < 1e-5


def _largest_error():
    program = lessons.program("mesh")
    _, mesh = program.make_groups()
    alone = [dist.new_group([rank]) for rank in range(3)][dist.get_rank()]
    if not dist.get_rank():
        return 0.0
    x = torch.ones(2, program.WIDTH)
    with torch.no_grad():
        return float((program.build(mesh, mesh)(x) - program.build(alone, alone)(x)).abs().max())


@pytest.mark.slow
def test_what_becomes_of_mistakes(drills):
    outcomes = drills.tables["outcomes"].set_index(["drill", "defence"])
    found = outcomes["outcome"].unstack()
    assert set(found.loc["divisor", ["none", "timeout", "DETAIL"]]) == {"wrong"}, "no collective differs"
    assert set(found.drop("divisor")["none"]) == {"hung"} and set(found.drop("divisor")["timeout"]) == {
        "ended"
    }
    assert found.loc["meets_the_plan", "DETAIL"] == "caught"
    assert "Detected mismatch" in outcomes["said"]["meets_the_plan", "DETAIL"]
    assert found.loc["stays_away", "DETAIL"] == "ended", "the others point to rank 0, whoever is missing"
    assert found.loc["half_made", "DETAIL"] == "ended", "making a group is no collective"
    assert "Of 5 mistakes 4 hang and 1 is silently wrong; DETAIL catches 1" in drills.figure().summary


@pytest.mark.slow
def test_a_rank_outside_that_joins_is_warned_and_the_number_is_wrong(three):
    found = run(three, *DRILLS, "matrix", MISTAKES=["joins"], LIMIT_S=10)[1]["wrong_group"].tables["outcomes"]
    rows = found.set_index("defence")
    assert list(rows["outcome"]) == ["warned", "warned", "warned"]
    assert "does not belong to the given group" in rows["said"]["none"]


@pytest.mark.slow
def test_a_drill_without_its_mistake_is_right_under_every_defence(three):
    space = run(three, *DRILLS, LIMIT_S=60)[0]
    drills = [space[name] for name in ("world_inside", "meets_the_plan", "no_group", "divisor", "joins")]
    drills += [space[name] for name in ("joins_compiled", "half_made", "stays_away")]
    options = {"device": "cpu", "backend": "gloo", "timeout": 240, "stall": None, "quiet": True}
    for drill in drills:
        with labkit.Ranks(3, **options, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as detail:
            plain, checked = (
                list(where.run(space["play"], drill, space["first"]).values()) for where in (three, detail)
            )
        assert plain == checked, drill.__name__


def _message(source, target, size):
    """On a rank: a message between two ranks, then a broadcast of all."""
    x = torch.full((size,), float(dist.get_rank()))
    if dist.get_rank() in (source, target):
        dist.send(x, target) if dist.get_rank() == source else dist.recv(x, source)
    dist.broadcast(x, 1)
    return x[0].item()


@pytest.mark.slow
def test_detail_refuses_a_right_program_after_a_message_between_some_of_its_ranks(three):
    assert set(three.run(_message, 2, 0, 7).values()) == {1.0}
    options = {"device": "cpu", "backend": "gloo", "timeout": 240, "quiet": True}
    with labkit.Ranks(3, **options, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as detail:
        with pytest.raises(RankError) as caught:
            detail.run(_message, 2, 0, 7)
        said = caught.value.outcomes[0].message
        assert "Detected mismatch" in said and "Sequence number" in said.partition("Collectives differ")[2]
        assert "Tensor shapes" not in said.partition("Collectives differ")[2]


@pytest.mark.slow
def test_detail_lets_a_sum_of_the_mesh_and_one_of_the_world_meet(three):
    call = run(three, "made")[0]["everybody_calls"]
    options = {"device": "cpu", "backend": "gloo", "timeout": 240, "quiet": True}
    with labkit.Ranks(3, **options, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as detail:
        for where in (three, detail):
            found = [(row["over the mesh"], row["over the world"]) for row in where.run(call).values()]
            assert found == [(3.0, 1.0), (110.0, 3.0), (110.0, 3.0)]


@pytest.mark.slow
def test_a_rank_outside_has_no_group_of_its_mesh(three):
    rows = three.run(run(three, "two-ways")[0]["two_ways"])
    assert rows[0]["mesh.get_group()"].startswith("IndexError") and rows[0]["coordinate"] is None
    assert rows[1]["mesh.get_group()"] == rows[2]["mesh.get_group()"] == "ProcessGroup"


def test_the_fence_reads_any_collective_that_has_a_group_in_its_schema():
    fence = lesson_cells.run(LESSON, "ex-solution", torch=torch)["my_fence_solution"]
    backend = fence(SimpleNamespace(group_name="1"))
    one_shot, legacy = torch.ops.symm_mem.one_shot_all_reduce, torch.ops.c10d_functional.all_reduce
    for op, rest, passes in (
        (one_shot, ("sum", "1"), True),
        (one_shot.default, ("sum", "11"), False),
        (legacy, ("sum", "", [0, 1], 2), False),  # names ranks, and no group
    ):
        graph = torch.fx.Graph()
        graph.output(graph.call_function(op, (graph.placeholder("x"), *rest)))
        module = torch.fx.GraphModule({}, graph)
        if passes:
            assert callable(backend(module, []))
        else:
            with pytest.raises(RuntimeError, match="not for '1'"):
                backend(module, [])


@pytest.mark.slow
def test_a_rank_outside_cannot_ask_a_group_whether_it_is_alike(three):
    assert set(three.run(_asks_outside).values()) == {"refused", "alike"}


def _asks_outside():
    program = lessons.program("mesh")
    _, mesh = program.make_groups()
    try:
        return program.compare(1, mesh)
    except AssertionError:
        return "refused"


def test_a_report_without_rows_is_drawn():
    empty = Report(
        "wrong_group", "", "gloo · cpu", {"outcomes": pd.DataFrame(columns=["drill", "defence", "outcome"])}
    )
    assert "No drill was run" in figures.mistakes(empty).summary

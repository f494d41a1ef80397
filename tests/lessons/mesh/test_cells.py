"""Rank 0 outside a mesh: counts, plans and health by group; and mistakes with groups, with and without a fence."""

from __future__ import annotations

import os

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import labkit
from course.mesh import figures
from course.shared.outcomes import judge
from labkit import Report, lessons
from labkit.ranks import RankError

LESSON = "11_mesh_or_world"
MISTAKES = ["world_inside", "divisor", "stays_away", "wrong_root"]


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", timeout=240, stall=1.5, quiet=True) as ranks:
        yield ranks


def run(three, *ids, edits=(), **names):
    """The reports that these cells make, by name."""
    reports = {}

    def made(name, *rest, **more):
        reports[name] = Report(name, *rest, **more)
        return reports[name]

    names |= dict(labkit=labkit, os=os, pd=pd, judge=judge, RankError=RankError, Report=made, ranks=three)
    names |= dict(calls_by_group=figures.calls_by_group, reveal=lambda *answer: "measured")
    lesson_cells.run(LESSON, *ids, **lesson_cells.copied(LESSON, *edits) | names)
    return reports


@pytest.fixture(scope="module")
def report(three) -> Report:
    ids = ("serve", "figure", "stage0", "compare-run", "cost-run")
    return run(three, *ids, REQUESTS=[2, 4, 2], OWN_MS=[0], ROUNDS=8)["mesh_or_world"]


@pytest.fixture(scope="module")
def drills(three) -> Report:
    no_mistake = [("pick(1, 0)", "pick(1, 1)")]
    return run(three, "matrix", "matrix-said", edits=no_mistake, MISTAKES=MISTAKES)["wrong_group"]


@pytest.mark.slow
def test_rank_0_calls_no_collective_of_the_mesh_whatever_it_compiles(report):
    found = report.tables["counts"].set_index(["form", "rank"])
    assert list(found["on the mesh"]) == 2 * [0, 12, 12] and list(found["on the world"]) == 6 * [7]
    assert list(found.loc["driver", "graphs"]) == [0, 2, 2]
    assert list(found.loc["stage 0", "graphs"]) == [2, 2, 2]


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
    assert set(report.frame["variant"]) == {"outside", "outside again", "in every collective"}
    assert report.tables["samples"].groupby(["variant", "rank"]).size().eq(8).all()
    assert [verdict.a for verdict in report.verdicts] == ["outside again", "in every collective"]


@pytest.mark.slow
def test_its_figures_say_in_words_what_they_show(report, tmp_path):
    again = Report.load(report.save(tmp_path))
    assert "Every mesh rank called 12 collectives of the mesh, rank 0 none" in again.figure().summary


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
    outcomes = drills.tables["outcomes"]
    found = outcomes.pivot(index="drill", columns="defence", values="outcome")
    for drill, alone in (("world_inside", "hung"), ("divisor", "wrong")):
        ends = {"none": alone, "collective check": alone, "domain": "caught"}
        assert found.loc[drill].to_dict() == ends
    away = found.loc["stays_away"]
    assert away["collective check"] == "caught" and away["domain"] == "hung"
    assert set(found.loc["wrong_root"]) == {"right"}
    caught = outcomes.set_index(["drill", "defence"])["said"]["world_inside", "domain"]
    assert "WrongGroup" in caught and "In [?]:" in caught, "a cell that IPython has not numbered"
    assert "Of 4 mistakes 2 hang and 1 are silently" in drills.figure().summary


def test_a_report_without_rows_is_drawn():
    empty = Report(
        "wrong_group", "", "gloo · cpu", {"outcomes": pd.DataFrame(columns=["drill", "defence", "outcome"])}
    )
    assert "No drill was run" in figures.mistakes(empty).summary

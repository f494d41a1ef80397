"""Rank 0 outside a mesh: counts, plans and health by group; and mistakes with groups, with and without a fence."""

from __future__ import annotations

import pandas as pd
import pytest

import labkit
from labkit import cli
from labkit.lessons.mesh import experiment as mesh_or_world
from labkit.lessons.mesh import wrong_group
from labkit.report import Report

BLOCKS = 1


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", timeout=240, stall=60, quiet=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def report(three) -> Report:
    return mesh_or_world.run(three, blocks=BLOCKS, rounds=2, steps=1, driver_ms=[0.0])


@pytest.fixture(scope="module")
def drills(three) -> Report:
    chosen = ["world_inside", "divisor", "stays_away", "mine"]
    return wrong_group.run(three, chosen, mistakes={"mine": _no_mistake}, stall=1.5)


def _no_mistake(site):
    """It is right."""
    site.group()
    return site.rank


@pytest.mark.slow
def test_rank_0_compiles_nothing_and_calls_no_collective_of_the_mesh(report):
    found = report.frame.set_index("rank")
    reduces = 4 * BLOCKS * sum(len(plan.calls) for plan in mesh_or_world.PLANS)
    assert list(found["mesh"]) == [0, reduces, reduces]
    assert list(found["graphs"]) == [0, 2, 2] and list(found["regions"]) == [0, 6, 6]
    assert found["world"].nunique() == 1 and not found["breaks"].any()


@pytest.mark.slow
def test_the_mesh_does_what_rank_0_plans(report):
    heard = report.tables["heard"].set_index(["rank", "call"])
    for rank in range(3):
        assert list(heard.loc[rank]["action"]) == [plan.action for plan in mesh_or_world.PLANS]
    assert list(heard.loc[1]["compiled"]) == list(heard.loc[2]["compiled"]) == [1, 0, 0, 1, 0, 0, 0]
    by_call = report.tables["groups"].query("rank == 1 and group == 'mesh'").set_index("call")["calls"]
    assert by_call.to_dict() == {0: 4, 1: 4, 2: 4, 3: 8, 5: 4}, "two calls in one plan, none in a noop"


@pytest.mark.slow
def test_health_is_alike_in_the_mesh_and_a_false_alarm_in_the_world(report):
    said = report.tables["health"].set_index("within")["said"]
    assert said["mesh"] == "alike" and "graphs: rank 0 0, rank 1 2, rank 2 2" in said["world"]


@pytest.mark.slow
def test_the_answers_are_right_in_every_form(report):
    assert not [note for note in report.notes if "NOT" in note] and len(report.notes) == 3
    samples = report.tables["samples"]
    assert sorted(set(samples["variant"])) == sorted(mesh_or_world.mesh_program.FORMS)
    assert samples.groupby(["variant", "rank"]).size().eq(2).all()


@pytest.mark.slow
def test_its_figures_say_in_words_what_they_show(report, tmp_path):
    again = Report.load(report.save(tmp_path))
    strip = again.figure()
    assert "rank 0 runs no compiled region; ranks 1 and 2 run 1 compiled region each, and are alike" in str(
        strip.summary
    )
    assert (
        "48" not in again.figure("plans").summary
        and "24 collectives of the mesh, rank 0 none" in again.figure("plans").summary
    )
    assert "outside (again)" in again.figure("cost").summary
    with pytest.raises(ValueError, match="there are strip, plans, cost"):
        again.figure("nothing")


@pytest.mark.slow
def test_a_mesh_rank_that_differs_is_outlined_and_rank_0_is_not(report):
    tables = dict(report.tables)
    segments = tables["segments"]
    mine = segments[(segments["rank"] == 2) & (segments["forward"] == 2)]
    last = mine[mine["name"].str.contains("all_reduce")].index[-1]
    tables["segments"] = segments.drop(index=last)
    tables["events"] = tables["events"].iloc[:0]
    tables["breaks"] = tables["breaks"].iloc[:0]
    other = Report(report.name, report.title, report.label, tables, view=report.view)
    assert "ranks that have to be alike part ways" in other.figure().summary


@pytest.mark.slow
def test_what_becomes_of_mistakes(drills):
    found = drills.frame.pivot(index="drill", columns="defence", values="outcome")
    assert found.loc["world_inside"].to_dict() == {
        "none": "hung",
        "collective check": "hung",
        "domain": "caught",
    }
    assert found.loc["divisor"].to_dict() == {
        "none": "wrong",
        "collective check": "wrong",
        "domain": "caught",
    }
    assert (
        found.loc["stays_away", "collective check"] == "caught"
        and found.loc["stays_away", "domain"] == "hung"
    )
    assert set(found.loc["mine"]) == {"right"}
    said = drills.frame.set_index(["drill", "defence"])["said"]
    assert (
        "WrongGroup" in said["world_inside", "domain"] and "wrong_group.py:" in said["world_inside", "domain"]
    )
    assert "Of 4 mistakes 2 hang and 1 are silently" in drills.figure().summary


def test_what_cannot_be_run_is_said_before_any_rank_is_asked(ranks, capsys):
    for module in (mesh_or_world, wrong_group):
        with pytest.raises(ValueError, match="give 3 ranks or more, got 2"):
            module.run(ranks)
    assert cli.main(["run", "mesh_or_world", "--ranks", "2"]) == 2
    assert "rank 0 stays outside and a mesh needs two ranks" in capsys.readouterr().err


@pytest.mark.slow
def test_bad_arguments(three):
    for wrong, said in (
        ({"steps": 0}, "steps is at least 1"),
        ({"driver_ms": []}, "driver_ms are times of 0 or more"),
        ({"driver_ms": [-1.0]}, "driver_ms are times of 0 or more"),
        ({"rounds": 1}, "rounds must be a whole number of at least 2"),
    ):
        with pytest.raises(ValueError, match=said):
            mesh_or_world.run(three, **wrong)
    with pytest.raises(ValueError, match="unknown mistake 'nothing': there is world_inside"):
        wrong_group.run(three, ["nothing"])


def test_a_report_without_rows_is_drawn():
    empty = Report(
        "wrong_group", "", "gloo · cpu", {"outcomes": pd.DataFrame(columns=["drill", "defence", "outcome"])}
    )
    from labkit.lessons.mesh.figures import mistakes

    assert "No drill was run" in mistakes(empty).summary

"""Rank 0 outside a mesh: counts, plans and health by group; and mistakes with groups, with and without a fence."""

from __future__ import annotations

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import labkit
from course.mesh import experiment as mesh_or_world
from course.mesh import figures, wrong_group
from labkit import cli, lessons
from labkit.report import Report


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", timeout=240, stall=60, quiet=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def report(three) -> Report:
    return mesh_or_world.run(three, rounds=2, own_ms=[0.0])


@pytest.fixture(scope="module")
def drills(three) -> Report:
    chosen = ["world_inside", "divisor", "stays_away", "wrong_root"]
    no_mistake = lesson_cells.copied("11_mesh_or_world", ("pick(1, 0)", "pick(1, 1)"))
    return wrong_group.run(three, chosen, program=no_mistake, stall=1.5)


@pytest.mark.slow
def test_rank_0_calls_no_collective_of_the_mesh_whatever_it_compiles(report):
    found = report.frame.set_index(["form", "rank"])
    assert list(found["mesh"]) == 2 * [0, 12, 12] and list(found["world"]) == 6 * [7]
    assert list(found.loc["driver", "graphs"]) == [0, 2, 2]
    assert list(found.loc["stage 0", "graphs"]) == [2, 2, 2]


@pytest.mark.slow
def test_the_same_counts_get_two_verdicts(report):
    said = report.tables["health"].set_index(["form", "what", "within"])["said"]
    for form in ("driver", "stage 0"):
        assert said[form, "counts", "mesh"] == said[form, "operations", "mesh"] == "alike"
        assert said[form, "operations", "world"] == "different"
    assert said["driver", "counts", "world"] == "different", "a false alarm"
    assert said["stage 0", "counts", "world"] == "alike", "by luck"


@pytest.mark.slow
def test_the_answers_are_right_and_every_form_is_timed(report):
    assert len(report.notes) == 2 and not [note for note in report.notes if "NOT" in note]
    samples = report.tables["samples"]
    assert set(samples["variant"]) == {"outside", "outside again", "in every collective"}
    assert samples.groupby(["variant", "rank"]).size().eq(2).all()


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
    assert max(three.run(_largest_error)) < 1e-5


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
    assert set(found.loc["wrong_root"]) == {"right"}
    said = drills.frame.set_index(["drill", "defence"])["said"]
    caught = said["world_inside", "domain"]
    assert "WrongGroup" in caught and "In [?]:" in caught, "a cell that IPython has not numbered"
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
        ({"own_ms": []}, "own_ms are times of 0 or more"),
        ({"own_ms": [-1.0]}, "own_ms are times of 0 or more"),
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
    assert "No drill was run" in figures.mistakes(empty).summary

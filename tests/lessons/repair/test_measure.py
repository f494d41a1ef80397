"""The service of lesson 18 beyond its stages: faults left in alone, a reader's fixes, reports put together."""

from __future__ import annotations

import dataclasses
import shutil

import lesson_cells
import nbformat
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import labkit
from course.repair import checks, figures, hints, measure, on_ranks, stages
from labkit import files, timing
from labkit.report import Report

FAULTS = stages.faults()


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", quiet=True, live=False) as ranks:
        yield ranks


# --- the fixes ---


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "noticed"), [("shape", "steady"), ("hidden", "whole")])
def test_a_fault_that_is_left_in_alone_is_noticed(ranks, three, fault, noticed):
    """Of the other faults the stages of the lesson say it."""
    service = stages.sources([name for name in FAULTS if name != fault])
    facts = ranks.run(on_ranks.watched, service)
    ends = measure.drills(three, service)
    rows = measure.described(facts, ends)["checks"]
    assert ", ".join(rows[~rows["passed"]]["check"]) == noticed


def fix_in_place(folder, *faults):
    """Save the lesson with some faults fixed in its own cells; returns where labkit then looks for its files."""
    shutil.copytree(files.ours("notebooks"), folder / "notebooks")
    path = folder / "notebooks" / "18_repair_it.ipynb"
    notebook = nbformat.read(path, as_version=4)
    service = [cell for cell in notebook.cells if cell.metadata.get("tags") == ["program"]]
    for before, after in [pair for fault in faults for pair in stages.program.FIXES[fault]]:
        (held,) = [cell for cell in service if before in cell.source]
        held.source = held.source.replace(before, after)
    nbformat.write(notebook, path)
    return lambda name: folder / name


@pytest.mark.slow
def test_cells_that_are_fixed_in_place_and_saved_are_measured_and_the_delivered_service_stays(
    ranks, tmp_path, monkeypatch
):
    delivered = stages.sources()
    monkeypatch.setattr(files, "ours", fix_in_place(tmp_path, "hidden", "log"))
    mine = lesson_cells.copied("18_repair_it")
    report = measure.run(ranks, ["delivered"], program=mine, name="two fixes", rounds=2)
    assert report.frame["breaks"].tolist() == [0.0] and "whole" not in report.frame["fails"].item()
    assert report.notes == ["program: add_up, Block edited"]
    assert set(report.tables["samples"]["variant"]) == {"eager", "two fixes"}
    assert [(verdict.a, verdict.b) for verdict in report.verdicts] == [("two fixes", "eager")]
    assert stages.sources() == delivered


def compiles_at(service, warm, lengths):
    """On a shard, warmed up for some more lengths: whether a prompt of each length compiles something."""
    code, found = stages.build(service), []
    torch._dynamo.reset()
    settings = dataclasses.replace(code.Settings(), backend="eager")
    shard = code.Shard(settings, dist.get_rank(), dist.get_world_size(), dist.group.WORLD)
    stats = torch._dynamo.utils.counters["stats"]
    with torch.no_grad():
        shard.warm_up()
        for number, length in enumerate((*warm, *lengths)):
            before = stats["unique_graphs"]
            shard.frame(torch.zeros(length, dtype=torch.int64), number)
            found.append(stats["unique_graphs"] > before)
    return found[len(warm) :]


@pytest.mark.slow
def test_a_prompt_of_length_one_compiles_once_more_unless_it_is_warmed_up(ranks):
    lengths, fixed = (9, 1, 1, 10, 2), stages.sources(FAULTS)
    assert ranks.run(compiles_at, fixed, (), lengths)[0] == [False, True, False, False, False]
    assert ranks.run(compiles_at, fixed, (1,), lengths)[1] == [False] * 5


# --- reports and figures ---


def test_rounds_of_several_reports_stay_apart():
    with pytest.raises(ValueError, match="there are no reports"):
        measure.merge([])

    def timed(stage, seconds):
        rows = [
            {"variant": name, "rank": 0, "round": 0, "seconds": s}
            for name, s in zip(("eager", stage), seconds, strict=True)
        ]
        stages_table = pd.DataFrame({"stage": [stage], "breaks": [0.0], "fails": [""]})
        return Report("repair", "", "", {"stages": stages_table, "samples": pd.DataFrame(rows)})

    def verdict(report):
        return timing.Verdict(report.frame["stage"].item(), "eager", 2.0, 1.9, 2.1, 40)

    again = [timed("a", (0.004, 0.008)), timed("a", (0.002, 0.002)), timed("a 2", (1, 1)), timed("a", (1, 1))]
    again = [dataclasses.replace(report, verdicts=[verdict(report)]) for report in again]
    numbered = measure.merge(again)
    names = ["a", "a 2", "a 2 2", "a 3"]
    assert list(numbered.frame["stage"]) == [verdict.a for verdict in numbered.verdicts] == names
    assert list(numbered.tables["samples"]["variant"]) == [n for name in names for n in ("eager", name)]
    both = measure.merge([timed("a", (0.004, 0.008)), timed("b", (0.002, 0.002))])
    assert list(both.tables["samples"]["round"]) == [0, 0, 1, 1]
    said = figures.progress(both).summary  # eager was twice as fast in the rounds of b
    assert "a 2.00 times the time of eager" in said and "b 1.00 times the time of eager" in said


# --- what is refused ---


def test_what_cannot_be_run_is_said_before_any_rank_is_asked(ranks, three):
    for wrong, said in (
        ({"stage": ["x"]}, "unknown stage 'x': there is delivered, group"),
        ({"name": "eager", "program": {}}, "'eager' is the name of what stages are compared with"),
        ({"rounds": 1}, "rounds must be a whole number of at least 2"),
        ({"program": {}}, "the program has no 'Settings'"),
    ):
        with pytest.raises(ValueError, match=said):
            measure.run(ranks, **wrong)
    with pytest.raises(ValueError, match="unknown fault 'x': there is group"):
        measure.factorial(ranks, {"a": ["x"]}, rounds=2)
    with pytest.raises(ValueError, match="the service has two shards: give 2 ranks, got 3"):
        measure.run(three)
    with pytest.raises(ValueError, match="unknown fault 'x': there is group"):
        stages.sources(["x"])


def test_hints_are_three_deep_and_there_are_some_for_each_check():
    assert {symptom.rstrip(" 12") for symptom in hints.HINTS} >= set(checks.CHECKS)
    assert len({hints.hint(symptom, depth) for symptom in hints.HINTS for depth in (1, 2, 3)}) == 48
    with pytest.raises(ValueError, match="no hints for 'speed': there are some for ends"):
        hints.hint("speed")
    with pytest.raises(ValueError, match="hints are 1, 2 or 3 deep, got 4"):
        hints.hint("ends", 4)

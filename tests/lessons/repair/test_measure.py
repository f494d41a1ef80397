"""The service of lesson 18: what each fix changes, who notices each fault that is left in, and what is refused."""

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
# after each fix: breaks a frame, recompiles in traffic, functional collectives a frame, and the checks that fail
PATH = {
    "delivered": (18, 16, 8, "ends, patient, warm, alike, numbers, steady, whole, in place"),
    "group fixed": (18, 16, 8, "patient, warm, alike, numbers, steady, whole, in place"),
    "timeout fixed": (18, 16, 8, "warm, alike, numbers, steady, whole, in place"),
    "cold fixed": (18, 16, 8, "alike, numbers, steady, whole, in place"),
    "setting fixed": (18, 16, 8, "steady, whole, in place"),
    "shape fixed": (18, 8, 8, "steady, whole, in place"),
    "counter fixed": (18, 0, 8, "whole, in place"),
    "hidden fixed": (6, 0, 8, "whole, in place"),
    "log fixed": (0, 0, 8, "in place"),
    "functional fixed": (0, 0, 0, ""),
}
# who notices a fault that is left in when all others are fixed
NOTICED = {
    "group": "ends",
    "timeout": "patient",
    "cold": "warm",
    "setting": "alike, numbers",
    "shape": "steady",
    "counter": "steady",
    "hidden": "whole",
    "log": "whole",
    "functional": "in place",
}


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", quiet=True, live=False) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def path(ranks) -> Report:
    return measure.run(ranks, rounds=0)


# --- the fixes ---


def test_there_are_nine_faults_and_each_is_noticed_by_a_check_with_hints_of_its_own():
    assert list(NOTICED) == FAULTS and len(FAULTS) == 9
    assert {name for noticed in NOTICED.values() for name in noticed.split(", ")} == set(checks.CHECKS)
    symptoms = {symptom.rstrip(" 12") for symptom in hints.HINTS}
    assert symptoms >= set(checks.CHECKS)


def test_a_fix_changes_the_service_and_leaves_the_others_as_they_are():
    whole = "".join(stages.sources().values())
    for fault in FAULTS:
        assert "".join(stages.sources([fault]).values()) != whole
    assert len({"".join(stages.sources(FAULTS[:n]).values()) for n in range(len(FAULTS) + 1)}) == 10
    assert "sleep" not in whole


@pytest.mark.slow
@pytest.mark.parametrize("stage", PATH)
def test_each_fix_changes_its_counts(path, stage):
    row = path.frame.set_index("stage").loc[stage]
    found = (row["breaks"], row["recompiles"], row["functional"], row["fails"])
    assert found == PATH[stage]


@pytest.mark.slow
def test_the_service_as_delivered_ends_its_calibration_in_a_hang_that_is_seen(path):
    said = path.tables["checks"].set_index(["stage", "check"])["said"]
    assert (
        said["delivered", "ends"]
        == "hung: rank 0 in recv from rank 1, rank 1 in all_reduce, rank 2 in all_reduce"
    )
    assert "Timed out waiting 500ms" in said["delivered", "patient"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_left_in_is_noticed(ranks, three, fault):
    service = stages.sources([name for name in FAULTS if name != fault])
    facts = ranks.run(on_ranks.watched, service)
    ends = measure.drills(three, service)
    rows = measure.described(facts, ends)["checks"]
    assert ", ".join(rows[~rows["passed"]]["check"]) == NOTICED[fault]


@pytest.mark.slow
def test_a_service_of_a_reader_is_measured_in_its_own_place(ranks):
    fixed = stages.build(stages.sources(FAULTS))
    report = measure.run(ranks, program=fixed, name="mine", rounds=2)
    assert report.frame[["stage", "fails"]].to_dict("split")["data"] == [["mine", ""]]
    assert set(report.tables["samples"]["variant"]) == {"eager", "mine"}
    assert [(verdict.a, verdict.b) for verdict in report.verdicts] == [("mine", "eager")]
    assert any(note.startswith("program: ") for note in report.notes)


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
    report = measure.run(ranks, ["delivered"], program=mine, name="two fixes", rounds=0)
    assert report.frame["breaks"].tolist() == [0.0] and "whole" not in report.frame["fails"].item()
    assert report.notes == ["program: add_up, Block edited"]
    assert stages.sources() == delivered  # what `path` measured


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


@pytest.mark.slow
def test_combinations_of_faults_are_timed_in_the_same_rounds(ranks):
    times = measure.factorial(ranks, {"a": ["log"], "b": ["functional"]}, rounds=2)
    assert set(times.frame["variant"]) == {"a + b", "a", "b", "neither", "eager"}
    assert times.frame.groupby("variant")["round"].nunique().tolist() == [2] * 5


@pytest.mark.slow
def test_its_figures_say_in_words_what_they_show(path, tmp_path):
    again = Report.load(path.save(tmp_path))
    assert "From 18 breaks a frame to 0." in again.figure().summary
    assert "log fixed: 0 breaks a frame, checks that fail: in place." in again.figure().summary


@pytest.mark.slow
def test_reports_of_single_stages_are_put_together(path):
    one = dataclasses.replace(path, tables={k: t.assign(stage="a") if "stage" in t else t.assign(variant="a")
                                            for k, t in path.tables.items()})  # fmt: skip
    with pytest.raises(ValueError, match="there are no reports"):
        measure.merge([])
    first = {key: table.head(1) for key, table in one.tables.items()}
    both = measure.merge([path, dataclasses.replace(one, tables=first)])
    assert list(both.frame["stage"]) == [*PATH, "a"]


def test_rounds_of_several_reports_stay_apart():
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


def test_the_figure_draws_the_time_ratio_of_the_verdicts():
    rows = [
        {"variant": name, "rank": 0, "round": i, "seconds": seconds}
        for name, seconds in (("eager", 0.004), ("a", 0.008), ("b", 0.002))
        for i in range(3)
    ]
    stages_table = pd.DataFrame({"stage": ["a", "b"], "breaks": [3.0, 0.0], "fails": ["whole", ""]})
    tables = {"stages": stages_table, "samples": pd.DataFrame(rows)}
    drawn = figures.progress(Report("repair", "", "shm · cpu", tables))
    assert drawn.summary.startswith(
        "From 2.00 to 0.50 times the time of eager, and from 3 breaks a frame to 0."
    )
    assert "b 0.50 times the time of eager (0.50-0.50)" in drawn.summary
    times = timing.Times(tables["samples"])
    assert [times.compare(stage, "eager").ratio for stage in ("a", "b")] == [2.0, 0.5]
    empty = Report("repair", "", "", {"stages": stages_table.head(0)})
    assert "Nothing was measured" in figures.progress(empty).summary


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


def test_hints_are_three_deep():
    assert len({hints.hint(symptom, depth) for symptom in hints.HINTS for depth in (1, 2, 3)}) == 48
    with pytest.raises(ValueError, match="no hints for 'speed': there are some for ends"):
        hints.hint("speed")
    with pytest.raises(ValueError, match="hints are 1, 2 or 3 deep, got 4"):
        hints.hint("ends", 4)

"""The ten break-it tests: each green with its defence, each red without, none by a limit of time, no process left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from course.break_it import experiment as break_it
from course.break_it import program
from labkit import experiments
from labkit.per_rank import PerRank
from labkit.ranks import RankError, Ranks, spawn
from labkit.ranks.errors import Outcome
from labkit.report import Report

each = pytest.mark.parametrize("name", break_it.TESTS)


def test_there_are_ten_and_each_says_what_it_breaks():
    assert len(break_it.TESTS) == 10
    assert all(test.broken and test.defence and test.expected for test in break_it.TESTS.values())
    assert all(getattr(program, name.replace("-", "_")).__doc__ for name in break_it.TESTS)


@each
def test_green_with_its_defence(name, ranks):
    report = break_it.run(ranks, [name])
    (row,) = report.frame.to_dict("records")
    assert row["result"] == "green" and break_it.passed(report), row
    assert list(report.tables["details"]["how"]) == ["expected"]


HOW_IT_ENDS = {
    "smoke": ("waits", "hung: rank 1 waits in"),
    "env": ("silent", "nobody noticed: rank 0 [0, 2, 2, 3]"),
    "compile-gate": ("measured", "9 graphs, 8 breaks, 11 regions"),  # the breaks that lesson 04 counts
    "first-break": ("measured", "LOG.warning"),
    "guards": ("measured", "2 recompiles"),
    "one-dimension": ("error", "recompiles: rank 0 0, rank 1 1"),
    "orphan": ("waits", "still waiting in"),
    "preflight": ("waits", "rank 1 was left waiting in broadcast"),
    "digest": ("silent", "nobody noticed"),
    "fingerprint": ("silent", "nobody noticed"),
}


@each
def test_red_where_the_defence_is_off(name, ranks):
    report = break_it.run(ranks, [name], undefended=True)
    (row,) = report.tables["details"].to_dict("records")
    assert list(report.frame["result"]) == ["red"] and not break_it.passed(report), row
    how, says = HOW_IT_ENDS[name]
    assert row["how"] == how and says in row["said"]


# --- no test passes by a limit of time ---


def stalled(*kinds: str) -> RankError:
    return RankError(
        "the ranks have waited",
        [Outcome(r, k, waits="all_reduce") for r, k in enumerate(kinds)],
        ended="stalled",
    )


def both(kind: str, said: str) -> RankError:
    return RankError("rank 0 failed", [Outcome(rank, "error", kind, said) for rank in (0, 1)], ended="raised")


@each
@pytest.mark.parametrize(
    "found",
    [
        stalled("unfinished", "unfinished"),
        RankError("120 s", [Outcome(0, "unfinished"), Outcome(1, "unfinished")], ended="timed out"),
        both("Absent", "rank 1 did not come"),
    ],
    ids=["stall", "timeout", "deadline"],
)
def test_what_ends_by_a_limit_of_time_is_red(name, found):
    passed, observed = break_it.judge(break_it.TESTS[name], found)
    assert not passed and ("hung" in observed or "deadline" in observed)


def died(leader: int, worker: int) -> RankError:
    ends = [Outcome(1, "dead", code=leader), Outcome(2, "dead", code=worker)]
    return RankError("rank 1 died", [Outcome(0, "ok"), *ends], ended="died")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "digest",
            RankError(
                "rank 1", [Outcome(0, "unfinished"), Outcome(1, "error", "DigestError", "x")], ended="raised"
            ),
        ),
        ("digest", both("DigestError", "the ranks compare the inputs of different calls")),
        ("fingerprint", both("DigestError", "x")),
        ("env", both("ParityError", "1 of 1 settings differ between ranks:\n    version torch: ...")),
        ("smoke", PerRank([{"heard": ["shutdown"], "total": 0.0}] * 2)),
        ("smoke", PerRank([{"heard": ["infer", "infer", "noop", "infer", "shutdown"], "total": 4.0}] * 2)),
        ("compile-gate", PerRank([{"graphs": 1, "breaks": 0}, {"graphs": 2, "breaks": 1}])),
        ("first-break", PerRank([{0: "", 1: ""}] * 2)),
        ("one-dimension", PerRank([{"recompiles": 2}] * 2)),
        ("one-dimension", PerRank([{"recompiles": 1}, {"recompiles": 0}])),
        ("preflight", PerRank([{"refused": ""}, {"got": {"steps": 4}, "x": [0.0, 1.0, 2.0, 3.0]}])),
        ("orphan", PerRank(["keeps the store", None, "noop"])),
        ("orphan", died(-9, 1)),
        ("orphan", died(1, 17)),
    ],
)  # fmt: skip
def test_another_end_than_the_expected_one_is_red(name, found):
    assert break_it.judge(break_it.TESTS[name], found)[0] is False


# --- the command, the table, what is left behind ---


def test_tests_are_run_by_name_and_an_unknown_one_is_refused(ranks):
    assert experiments.get("break-it/digest").run(ranks).name == "break-it-digest"
    for name, says in (
        ("break-it/luck", "unknown break-it test 'luck': there is smoke, env, compile-gate"),
        ("break-it/", "unknown break-it test ''"),
        ("cliff/digest", "cliff is one experiment and has no 'digest'"),
        ("nothing/digest", "unknown experiment 'nothing/digest'"),
    ):
        with pytest.raises(ValueError, match=says):
            experiments.get(name)
    with pytest.raises(ValueError, match="unknown break-it test 'luck'"):
        break_it.run(ranks, ["luck"])
    with (
        Ranks(1, device="cpu", quiet=True) as one,
        pytest.raises(ValueError, match="at least 2 ranks, and these are 1"),
    ):
        break_it.run(one)


@pytest.mark.slow
def test_the_command_prints_the_table_fails_for_a_red_one_and_leaves_no_process():
    mark = f"LABKIT_MARK={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    found = subprocess.run(
        [sys.executable, "-m", "labkit", "run", "break-it/orphan", "--undefended", "--json"],
        env={**os.environ, name: value}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert found.returncode == 1, found.stderr
    (result,) = json.loads(found.stdout)["tables"]["tests"]["result"]
    assert result == "red" and _marked(mark) == []


def _marked(mark: str) -> list[str]:
    """Commands of the processes that were started with this in their environment and still live."""
    living = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                living.append((folder / "comm").read_text().strip())
        except OSError:  # ended meanwhile, or of another user
            continue
    return living


def _forked() -> set[int]:
    """The children of this process' zygote."""
    here, found = spawn.shared().process.pid, set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == here:
            found.add(int(path.parent.name))
    return found


@pytest.mark.parametrize("name", ["orphan", "preflight"])
def test_no_rank_outlives_a_test_that_ends_ranks(name):
    before = _forked()
    with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        break_it.run(ranks, [name], undefended=name == "preflight")
    assert _forked() == before


def test_a_grace_that_is_no_time_is_refused(ranks):
    with pytest.raises(ValueError, match="grace must be a number above 0, got 0"):
        ranks.run(max, 1, 2, grace=0)


def test_the_report_is_drawn_alone_and_beside_another_after_saving(ranks, tmp_path):
    green = break_it.together([break_it.run(ranks, [name]) for name in ("digest", "fingerprint")])
    assert green.name == "break-it" and len(green.tables["details"]) == 2 and "all 2 green" in green.notes[0]
    with pytest.raises(ValueError, match="no reports"):
        break_it.together([])
    loaded = Report.load(green.save(tmp_path))
    drawn = loaded.figure()
    assert (
        "2 of 2 tests are green" in drawn.summary
        and "digest green (DigestError on rank 0 and 1" in drawn.summary
    )
    two = loaded.figure(beside=break_it.run(ranks, ["digest", "fingerprint"], undefended=True))
    assert "and 0 of 2 without it" in two.summary and "digest red (nobody noticed" in two.summary
    with pytest.raises(ValueError, match="has no table 'tests'"):
        Report("x", "x", "gloo · cpu", {"main": green.frame}, view="course.break_it.figures:figure").figure()

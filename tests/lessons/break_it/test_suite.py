"""The ten break-it tests: each green with its defence, each red without, none by a limit of time, no process left."""

from __future__ import annotations

from pathlib import Path

import lesson_cells
import pandas as pd
import pytest

from course.break_it import figures, judges, suite
from labkit import Report, lessons
from labkit.per_rank import PerRank
from labkit.ranks import RankError, Ranks, spawn
from labkit.ranks.errors import Outcome

each = pytest.mark.parametrize("name", judges.TESTS)


def body(name):
    return getattr(lessons.program("break_it"), name.replace("-", "_"))


def test_there_are_ten_and_each_says_what_it_breaks():
    assert len(judges.TESTS) == 10
    assert all(test.broken and test.defence and test.expected for test in judges.TESTS.values())
    assert all(body(name).__doc__ for name in judges.TESTS)


@each
def test_green_with_its_defence(name, ranks):
    row = suite.result(ranks, body(name), defended=True)
    assert (row["result"], row["how"]) == ("green", "expected"), row


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
    row = suite.result(ranks, body(name), defended=False)
    how, says = HOW_IT_ENDS[name]
    assert (row["result"], row["how"]) == ("red", how) and says in row["said"], row


# --- no test passes by a limit of time ---


def stalled(*kinds: str) -> RankError:
    return RankError(
        "the ranks have waited",
        [Outcome(r, k, waits="all_reduce") for r, k in enumerate(kinds)],
        ended="stalled",
    )


def raised(kind: str, said: str) -> RankError:
    return RankError("rank 0 failed", [Outcome(rank, "error", kind, said) for rank in (0, 1)], ended="raised")


@each
@pytest.mark.parametrize(
    "found",
    [
        stalled("unfinished", "unfinished"),
        RankError("120 s", [Outcome(0, "unfinished"), Outcome(1, "unfinished")], ended="timed out"),
        raised("Absent", "rank 1 did not come"),
    ],
    ids=["stall", "timeout", "deadline"],
)
def test_what_ends_by_a_limit_of_time_is_red(name, found):
    passed, observed = judges.judge(judges.TESTS[name], found)
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
        ("digest", raised("DigestError", "the ranks compare the inputs of different calls")),
        ("fingerprint", raised("DigestError", "x")),
        ("env", raised("ParityError", "1 of 1 settings differ between ranks:\n    version torch: ...")),
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
    assert judges.judge(judges.TESTS[name], found)[0] is False


# --- the cells: the tests that are chosen, the table, the gate ---


def row(test, result, how="expected"):
    said = {"expected": "", "broken": "", "defence": "", "said": "x", "seconds": 0.1}
    return {"test": test, "result": result, "observed": f"{test} saw it", "how": how, **said}


def table(on, off):
    """The cells of section 3 for one test that ended so with its defence, and so without."""
    names = dict(pd=pd, Report=Report, judges=judges, suite=suite, reveal=lambda *answer: "measured")
    results = {"on": [row("digest", on)], "off": [row("digest", off, "silent")]}
    label = Ranks.__new__(Ranks)
    label.label = "gloo · cpu"
    return lesson_cells.run(
        "15_break_it", "break-42", "break-43", "break-44-gate", ranks=label, results=results, **names
    )


def test_the_gate_lets_through_what_is_green_with_its_defence_and_red_without():
    space = table("green", "red")
    assert list(space["report"].frame.iloc[0]) == ["digest", "green", "red", "silent"]


@pytest.mark.parametrize(
    ("on", "off", "said"),
    [
        ("red", "red", r"red with the defence: \['digest'\]; green without it: \[\]"),
        ("green", "green", r"red with the defence: \[\]; green without it: \['digest'\]"),
    ],
)
def test_the_gate_names_the_test(on, off, said):
    with pytest.raises(AssertionError, match=said):
        table(on, off)


def test_a_test_that_is_not_chosen_is_not_run(capsys):
    space = lesson_cells.run("15_break_it", "break-07", TESTS=["smoke"], suite=suite, ranks=None)
    space["both"](body("digest"))
    assert capsys.readouterr().out.endswith("not among TESTS: digest\n")
    assert space["results"] == {"on": [], "off": []}


# --- what is left behind ---


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
        suite.result(ranks, body(name), defended=name == "orphan")
    assert _forked() == before


def test_a_grace_that_is_no_time_is_refused(ranks):
    with pytest.raises(ValueError, match="grace must be a number above 0, got 0"):
        ranks.run(max, 1, 2, grace=0)


def test_the_report_is_drawn_alone_and_with_the_undefended_beside_after_saving(tmp_path):
    view = "course.break_it.figures:figure"
    on = pd.DataFrame([row("digest", "green"), row("env", "green")])
    off = pd.DataFrame([row("digest", "red"), row("env", "red")])
    alone = Report("break-it", "t", "gloo · cpu", {"tests": on}, view=view)
    assert "2 of 2 tests are green" in alone.figure().summary
    both = Report("break-it", "t", "gloo · cpu", {"tests": on, "undefended": off}, view=view)
    drawn = Report.load(both.save(tmp_path)).figure()
    assert "and 0 of 2 without it" in drawn.summary and "digest red (digest saw it)" in drawn.summary
    with pytest.raises(ValueError, match="has no table 'tests'"):
        figures.figure(Report("x", "x", "gloo · cpu", {"main": on}))

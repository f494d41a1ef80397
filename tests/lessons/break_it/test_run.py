"""Lesson 15 from top to bottom, and what its report and its cells say."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

from course.break_it import figures

LESSON = "15_break_it"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]
WAITS = {"smoke", "orphan", "wedge", "preflight"}  # the others are silent
AVOIDED = {"smoke", "preflight"}  # there every rank returns
WRONG = {"env", "digest", "fingerprint"}  # numbers


def test_each_test_is_caught_and_without_its_defence_is_not_and_lets_a_right_program_through(run):
    tests, found = run.values["TESTS"], run.table("break-it", "tests")
    how = found.pivot(index="test", columns="run", values="how").T.to_dict()
    assert how == {
        name: {
            "fault + defence": "avoided" if name in AVOIDED else "caught",
            "fault alone": "waits" if name in WAITS else "silent",
            "right program": "passes",
        }
        for name in tests
    }
    assert found["good"].all() and set(found["how"]) - {"silent"} <= set(figures.COLOURS)
    assert set(found[found["numbers"] == "wrong numbers"]["test"]) == WRONG & set(tests)
    drawn = run.reports["break-it"].figure().summary
    assert "Of 11 faults alone 4 wait, 7 are silent: 3 with wrong numbers, 4 with right ones" in drawn
    assert "33 of 33 runs ended as they have to" in run.text("break-17")


@pytest.mark.parametrize(
    ("cell", "defended", "alone"),
    [("break-06", "avoided", "waits"), ("break-09", "caught", "silent"), ("break-12", "caught", "silent")],
)
def test_a_cell_runs_three_times_on_ranks(run, cell, defended, alone):
    how = re.findall(r"^(fault \+ defence|fault alone|right program) +(\w+) *$", run.text(cell), re.M)
    assert how[:3] == [("fault + defence", defended), ("fault alone", alone), ("right program", "passes")]
    assert " at 0x" not in run.text(cell)


def test_the_whole_environment_differs_between_right_ranks(run):
    said = run.text("break-09").splitlines()
    assert said[0].startswith("settings differ between ranks (2 of ")
    assert said[1:3] == ["    LOCAL_RANK: rank 0 '0', rank 1 '1'", "    RANK: rank 0 '0', rank 1 '1'"]


def test_a_break_in_a_loop_is_not_counted_and_the_gate_sees_it(run):
    rows = re.findall(r"^(\w+) +(\d+) +(\d+) +(True|False) +Unsupported$", run.text("break-14"), re.M)
    assert rows == [
        ("in_a_row", "2", "2", "False"),
        ("loop_over_blocks", "1", "0", "True"),
        ("loop_over_layers", "1", "1", "True"),
    ]

"""Lesson 08: what its benches show, and the surprises that its text explains."""

from __future__ import annotations

import linecache
import re

import lesson_cells
import pytest

from course.symmetry import pictures
from labkit.study.bench import Try

pytestmark = pytest.mark.slow

LESSON = "08_rank_symmetry"
RIGHT = "returned [4.0, 40.0, 400.0]"


def _execute(text, space):
    """Run a cell under a file name as a kernel gives it: the annotated source quotes its lines."""
    name = f"/scratch/ipykernel_1/{abs(hash(text))}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)


@pytest.fixture(scope="module")
def cells():
    """What the cells of the benches define, in the order of the lesson."""
    sources = lesson_cells._sources(LESSON)
    found: dict = {"__name__": "__main__"}
    names = ("setup", "layers", "drill", "rows-run", "gathers", "planned", "plan-run", "block", "block-run")
    for name in names:
        _execute(sources[name].replace("%load_ext labkit", ""), found)
    yield found
    found["ranks"].close()
    found["fake"].close()


def _change(cells, monkeypatch, name, before, after):
    """A reader edits a function in its cell, and runs the cell."""
    (text,) = (text for text in lesson_cells._sources(LESSON).values() if f"def {name}(" in text)
    assert text.count(before) == 1
    space = dict(cells)
    _execute(text.replace(before, after), space)
    monkeypatch.setitem(cells, name, space[name])


DRILLS = {
    ("nothing", "none"): ("finishes", [RIGHT, RIGHT]),
    ("a branch", "none"): ("hangs", ["still waits", "returned"]),
    ("a branch", "monitored_barrier"): ("hangs", ["still waits", "still waits"]),
    ("a branch", "DETAIL"): ("raises an error", ["raised", "returned"]),
    ("another group", "none"): ("hangs", ["still waits", "still waits"]),
    ("another shape", "none"): ("crashes", None),
    ("another shape", "DETAIL"): ("raises an error", ["raised", "raised"]),
    ("a recompile", "none"): ("finishes", [RIGHT, RIGHT]),
    ("a recompile", "DETAIL"): ("finishes", [RIGHT, RIGHT]),
}


def test_how_each_difference_ends(cells):
    found = {case: cells["run_drill"](*case) for case in DRILLS}
    for case, (ended, said) in DRILLS.items():
        assert found[case]["ended"] == ended, (case, found[case]["said"])
        assert said is None or list(found[case]["ends"]["said"]) == said, case
    waits = {}
    for case in (("a branch", "none"), ("a branch", "monitored_barrier")):
        notes = found[case]["notes"]
        waits[case] = dict(notes.loc[notes["end"].isna(), ["rank", "what"]].to_numpy().tolist())
    assert waits == {
        ("a branch", "none"): {0: "layer 2"},  # one call after the difference
        ("a branch", "monitored_barrier"): {0: "layer 1", 1: "layer 2"},
    }
    assert "failed to pass monitoredBarrier" in found["a branch", "DETAIL"]["said"]
    assert "shapes: 4vs 5" in found["another shape", "DETAIL"]["said"]
    tries = [
        Try({"rank_1_differs_in": name}, found[name, "none"], 1.0) for name in ("nothing", "a recompile")
    ]
    page = pictures.ends(tries)
    assert "compiles" in page and "differs in nothing: finishes" in page
    assert "compiled again: the stride of dimension 0" in re.sub(r"<[^>]*>", "", page)


def test_a_branch_on_the_reduced_value_is_harmless(cells, monkeypatch):
    """Section 1's change: all ranks make the call, and branch alike."""

    before = "    if y.sum() > 0:\n        dist.all_reduce(y, group=group)\n    return y\n"
    after = "    dist.all_reduce(y, group=group)\n    return y if y.sum() > 0 else -y\n"
    _change(cells, monkeypatch, "layer", before, after)
    assert cells["run_drill"]("a branch", "none")["ended"] == "wrong numbers"  # rank 1's data were negative


CALLS = {
    ("q 4, k 4", "k 4, q 4", "none"): ("wrong numbers", [["21", "12"], ["21", "12"]]),
    ("q 4, k 4", "k 4, q 4", "DETAIL"): ("wrong numbers", [["21", "12"], ["21", "12"]]),
    ("q 4", "q 5", "none"): ("crashes", [[None], [None]]),
    ("q 3", "q 4", "none"): ("hangs", [["3"], [None]]),
    ("q 1", "q 2", "none"): ("hangs", [[None], [None]]),
    ("q 4", "q 4 max", "DETAIL"): ("wrong numbers", [["3 2"], ["3 2"]]),
    ("q 4", "q 4 int32", "none"): ("wrong numbers", [["1 1"], ["1.06535e+09 1.06535e+09"]]),
    ("q 4", "q 4 int32", "DETAIL"): ("raises an error", [[None], [None]]),
    ("q 4, k 4", "q 4", "none"): ("hangs", [["3", None], ["3"]]),
    ("q 3 gather, k 2 max", "q 3 gather, k 2 max", "none"): ("finishes", [["1 2", "20"], ["1 2", "20"]]),
}


def test_which_calls_meet(cells):
    tries = []
    for (rank_0, rank_1, check), (ended, got) in CALLS.items():
        found = cells["run_calls"](rank_0, rank_1, check)
        assert found["ended"] == ended, (rank_0, rank_1, check, found)
        assert [[value for _, value, _ in row] for row in found["rows"]] == got, (rank_0, rank_1, check)
        tries.append(Try({"rank_0": rank_0, "rank_1": rank_1, "check": check}, found, 1.0))
    swapped = pictures.calls(tries[:1])
    assert swapped.count(pictures.BAD) == 4 + 1 and swapped.count(pictures.GOOD) == 1, (
        "the key has one of each"
    )
    alone = pictures.calls([tries[list(CALLS).index(("q 4, k 4", "q 4", "none"))]])
    assert alone.count(pictures.GOOD) == 2 + 1 and alone.count(pictures.WAITS) == 1 + 1
    for line in ("x 4", "q four", "q 4 min", "q"):
        with pytest.raises(ValueError):
            cells["parsed"](line)


# breaks on, gathers, trains on, bucketing: how it ends, and the numbers of calls
PLANS = {
    ("rank 1", "a and b", "no rank", False): ("finishes", [2, 2]),
    ("rank 1", "a and b", "no rank", True): ("crashes", [1, 2]),
    ("both ranks", "a and b", "no rank", True): ("finishes", [2, 2]),
    ("rank 1", "a twice", "no rank", False): ("finishes", [2, 2]),
    ("rank 1", "a twice", "both ranks", False): ("hangs", None),
    ("no rank", "a twice", "rank 0 only", False): ("hangs", None),
    ("both ranks", "a twice", "both ranks", False): ("finishes", None),
}


@pytest.mark.full
def test_the_planned_lists_are_alike_where_the_step_ends_well(cells):
    for case, (ended, counts) in PLANS.items():
        found = cells["run_plan"](*case)
        lists = list(found["planned"].values())
        assert found["ended"] == ended, (case, lists)
        assert (lists[0] == lists[1]) == (ended == "finishes"), case
        assert counts is None or [len(one) for one in lists] == counts, case
        if case == ("rank 1", "a and b", "no rank", True):
            names = ("breaks_on", "gathers", "trains_on", "bucketing")
            page = pictures.plans([Try(dict(zip(names, case, strict=True)), found, 1.0)])
            assert "no call" in page and page.count(pictures.BAD) == 4 + 1
    gathers = [call for call in lists[0] if call.startswith("all_gather")]
    assert len(gathers) == 2, "a break keeps CSE from merging"


@pytest.mark.full
def test_gathers_of_unequal_tensors_are_not_merged(cells, monkeypatch):
    """Section 3's change: the second gather's input is multiplied, and not its result."""
    before = "all_gather(b, 0, dist.group.WORLD) * 3"
    _change(cells, monkeypatch, "two_gathers", before, "all_gather(b * 3, 0, dist.group.WORLD)")
    found = cells["run_plan"]("rank 1", "a twice", "both ranks", False)
    assert found["ended"] == "finishes", found["planned"]


@pytest.mark.full
def test_a_break_on_one_rank_spoils_the_training_and_rank_1_ends_early(cells):
    """All steps of rank 0 end, at five calls each; rank 1 makes six."""
    for case, ended, steps in (
        (("rank 1", True), "hangs", [12, 10]),
        (("both ranks", True), "finishes", [12, 12]),
        (("rank 1", False), "finishes", [12, 12]),
    ):
        found = cells["run_training"](*case)
        assert found["ended"] == ended and [len(one) for one in found["losses"]] == steps, case
        right = [abs(a - b) < 1e-2 * b for a, b in zip(found["losses"][0], found["right"], strict=True)]
        assert all(right) if ended == "finishes" else sum(right) <= 1, (case, found["losses"])
        assert found["right"][-1] < found["right"][0] / 2
        assert ended == "finishes" or min(found["losses"][0][-4:]) > 2 * found["right"][-1], case


@pytest.mark.full
def test_a_loss_that_is_reduced_for_the_log_ends_the_silence(cells, monkeypatch):
    """Section 4's change: a scalar meets an activation."""
    before = "        yield loss.item()\n"
    after = "        total = loss.detach().clone(); dist.all_reduce(total)\n" + before
    _change(cells, monkeypatch, "training", before, after)
    found = cells["run_training"]("rank 1", True)
    assert found["ended"] == "crashes" and not any(found["losses"]), found["losses"]

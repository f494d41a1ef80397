"""Lesson 08: what its benches show, and the surprises that its text explains."""

from __future__ import annotations

import linecache
import re

import lesson_cells
import pytest
import torch
import torch.distributed as dist

from course.shared.outcomes import judge
from course.symmetry import pictures
from labkit.ranks import RankError
from labkit.study.bench import Try
from labkit.torch_compat import funcol

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
    ("a branch", "none"): ("times out", ["raised", "returned"]),
    ("a branch", "DETAIL"): ("times out", ["raised", "returned"]),
    ("another group", "none"): ("times out", None),
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
    for defence in ("none", "DETAIL"):
        notes = found["a branch", defence]["notes"]
        on_0 = notes.loc[notes["rank"] == 0]
        assert list(on_0.loc[on_0["end"].isna(), "what"]) == ["layer 2"]  # one call after the difference
        assert list(on_0.loc[on_0["kind"] == "python", "what"]) == ["4", "220"]
    assert (
        "Timed out" in found["a branch", "none"]["said"]
        and "Ranks 1" not in found["a branch", "none"]["said"]
    )
    assert "Ranks 1 failed to pass monitoredBarrier" in found["a branch", "DETAIL"]["said"]
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
    after = "    dist.all_reduce(y, group=group)\n    if y.sum() < 0:\n        y = -y\n    return y\n"
    _change(cells, monkeypatch, "layer", before, after)
    found = cells["run_drill"]("a branch", "none")
    assert list(found["ends"]["said"]) == ["returned [4.0, 0.0, 400.0]"] * 2, found["said"]


CALLS = {
    ("q 4, k 4", "k 4, q 4", "none"): ("wrong numbers", [["21", "12"], ["21", "12"]]),
    ("q 4, k 4", "k 4, q 4", "DETAIL"): ("wrong numbers", [["21", "12"], ["21", "12"]]),
    ("q 4", "q 5", "none"): ("crashes", [[None], [None]]),
    ("q 3", "q 4", "none"): ("times out", [["3"], [None]]),
    ("q 1", "q 2", "none"): ("times out", [[None], [None]]),
    ("q 4", "q 4 max", "DETAIL"): ("wrong numbers", [["3 2"], ["3 2"]]),
    ("q 4", "q 4 int32", "none"): ("wrong numbers", [["1 1"], ["1.06535e+09 1.06535e+09"]]),
    ("q 4", "q 4 int32", "DETAIL"): ("raises an error", [[None], [None]]),
    ("q 4, k 4", "q 4", "none"): ("times out", [["3", None], ["3"]]),
    ("q 3, k 2 max", "q 3, k 2 max", "none"): ("finishes", [["3", "20"], ["3", "20"]]),
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


# breaks on, gathers, gradients on, bucketing, torch's check: how it ends, and the numbers of calls
PLANS = {
    ("rank 1", "a and b", "no rank", False, False): ("finishes", [2, 2]),
    ("rank 1", "a and b", "no rank", True, False): ("crashes", [1, 2]),
    ("both ranks", "a and b", "no rank", True, False): ("finishes", [2, 2]),
    ("rank 1", "a twice", "no rank", False, False): ("finishes", [2, 2]),
    ("rank 1", "a twice", "both ranks", False, False): ("hangs", [1, 2]),
    ("no rank", "a twice", "rank 0 only", False, False): ("hangs", [1, 2]),
    ("no rank", "a and b", "rank 0 only", False, False): ("finishes", [2, 2]),
    ("rank 1", "a and b", "no rank", True, True): ("raises an error", [1, 2]),
    ("rank 1", "a and b", "no rank", False, True): ("raises an error", [2, 2]),
    ("no rank", "a and b", "rank 0 only", False, True): ("raises an error", [2, 2]),
    ("both ranks", "a twice", "both ranks", False, False): ("finishes", [2, 2]),
}


@pytest.mark.full
def test_the_planned_lists_are_alike_where_the_step_ends_well(cells):
    for case, (ended, counts) in PLANS.items():
        found = cells["run_plan"](*case)
        lists = list(found["planned"].values())
        assert found["ended"] == ended, (case, lists)
        assert case[-1] or (lists[0] == lists[1]) == (ended == "finishes"), case
        assert [len(one) for one in lists] == counts, (case, lists)
        if case == ("rank 1", "a and b", "no rank", True, False):
            names = ("breaks_on", "gathers", "gradients_on", "bucketing", "spmd_check")
            page = pictures.plans([Try(dict(zip(names, case, strict=True)), found, 1.0)])
            assert "no call" in page and page.count(pictures.BAD) == 4 + 1
    gathers = [call for call in lists[0] if call.startswith("all_gather")]
    assert len(gathers) == 2, "a break keeps CSE from merging"


@pytest.mark.full
def test_gathers_of_unequal_tensors_are_not_merged(cells, monkeypatch):
    """Section 3's change: the second gather's input is multiplied, and not its result."""
    before = "all_gather(b, 0, dist.group.WORLD) * 3"
    _change(cells, monkeypatch, "two_gathers", before, "all_gather(b * 3, 0, dist.group.WORLD)")
    found = cells["run_plan"]("rank 1", "a twice", "both ranks", False, False)
    assert found["ended"] == "finishes", found["planned"]


@pytest.mark.full
def test_a_break_on_one_rank_spoils_the_training_and_rank_1_ends_early(cells):
    """All steps of rank 0 end, at five calls each; rank 1 makes six."""
    for case, alike, ended, steps in (
        (("rank 1", True), "no", "hangs", [12, 10]),
        (("both ranks", True), "yes", "finishes", [12, 12]),
        (("rank 1", False), "yes", "finishes", [12, 12]),
    ):
        found = cells["run_training"](*case)
        assert (found["alike"], found["ended"]) == (alike, ended), (case, found)
        assert [len(one) for one in found["losses"]] == steps, (case, found)
        assert found["right"][-1] < found["right"][0] / 2
        if alike == "no":
            (first, *_, last), right = found["losses"][0], found["right"]
            assert abs(first - right[0]) < 1e-2 * right[0] and last > 2 * right[-1]


@pytest.mark.full
def test_a_loss_that_is_reduced_for_the_log_ends_the_silence(cells, monkeypatch):
    """Section 4's change: a scalar meets an activation."""
    before = "        yield loss.item()\n"
    after = "        total = loss.detach().clone(); dist.all_reduce(total)\n" + before
    _change(cells, monkeypatch, "training", before, after)
    found = cells["run_training"]("rank 1", True)
    assert found["ended"] == "crashes" and not any(found["losses"]), found["losses"]


def test_a_partial_sum_that_is_reduced_once_has_the_same_calls_with_a_break(cells, monkeypatch):
    """Section 4: its model was built to reduce it twice."""
    text = lesson_cells._sources(LESSON)["block"]
    before = "    attention = torch.relu(normed(reduce(partial))"
    once = text.replace(before, "    x = reduce(partial)\n" + before).replace(
        "normed(reduce(partial))", "normed(x)"
    )
    space = dict(cells)
    _execute(once, space)
    assert [len(calls) for calls in cells["fake"].run(space["planned_block"], (1,)).values()] == [4, 4]
    assert [len(calls) for calls in cells["fake"].run(cells["planned_block"], (1,)).values()] == [5, 6]


def gathered_twice(x, up, down, breaks):
    """Two column-parallel layers under sequence parallelism: each gathers its input."""
    group = dist.group.WORLD
    gathered = funcol.all_gather_tensor_autograd(x, 0, group)
    first = funcol.reduce_scatter_tensor_autograd(torch.relu(gathered @ up) @ down, "sum", 0, group)
    if breaks:
        torch._dynamo.graph_break()
    gathered = funcol.all_gather_tensor_autograd(x, 0, group)
    return first + funcol.reduce_scatter_tensor_autograd(torch.relu(gathered @ down) @ up, "sum", 0, group)


def one_step(block, collectives):
    """On a rank: a step with a break on rank 1, or what it calls."""
    torch.compiler.reset()
    compiled = torch.compile(block)
    x, up, down = (torch.ones(shape, requires_grad=True) for shape in ((8, 16), (16, 16), (16, 16)))

    def step():
        compiled(x, up, down, dist.get_rank() == 1).square().mean().backward()

    return collectives(step, {}) if collectives else step()


@pytest.mark.full
def test_gathers_of_sequence_parallel_layers_are_merged_too(cells):
    lists = cells["fake"].run(one_step, gathered_twice, cells["collectives"]).values()
    assert [len([call for call in calls if "gather" in call]) for calls in lists] == [2, 4]
    with pytest.raises(RankError) as caught:
        cells["ranks"].run(one_step, gathered_twice, None, stall=3)
    assert judge(caught.value)[0] == "hung", caught.value


def _shared_sizes():
    torch.compiler.reset()
    with torch._dynamo.config.patch(enable_compiler_collectives=True):
        torch.compile(torch.neg, backend="eager")(torch.ones(4 + dist.get_rank()))


def test_compiler_collectives_do_not_run_over_gloo(cells):
    with pytest.raises(RankError, match="TypeError"):
        cells["ranks"].run(_shared_sizes)

"""Lesson 03 from top to bottom: what each of torch's logs says of the two ranks, which lines copy, and gradients."""

from __future__ import annotations

import ast
import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "03_reading_graphs"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

REDUCE = r'" = \S*\.(all_reduce|wait_tensor|copy_)\('  # as an operation of a printed graph


def test_rank_1_is_in_two_graphs_and_rank_0_in_one(run):
    """By the program's numbers, Dynamo's logs, tlparse, depyf, and labkit."""
    ran = run.text("cell-07-r03")
    errors = [float(error) for error in re.findall(r"largest error (\S+)", ran)]
    assert len(errors) == 2 and max(errors) < 1e-5 and ran.count("partial sum") == 1
    none, one = run.text("cell-09-r03").split("rank 1, ")
    assert none.strip() == "rank 0, 0 lines:" and "Graph break in user code at graphs.py:" in one
    assert "`print`" in one
    whole, first, resumed = run.text("cell-11-r03").split("rank 1, ")
    assert re.findall(REDUCE, whole) == re.findall(REDUCE, resumed) == ["all_reduce", "wait_tensor", "copy_"]
    assert "return (y,)" in first and not re.findall(REDUCE, first)
    assert "Diverging Compilation IDs" in run.text("cell-20-r03")
    functions = re.findall(r"^rank (\d): (.*)", run.text("cell-24-r03"), re.MULTILINE)
    assert [(rank, len(names.split())) for rank, names in functions] == [("0", 1), ("1", 2)]
    looked = run.text("cell-26-r03")
    assert (
        "rank 0: Frames(1 frame, 1 graph, 0 breaks)" in looked
        and "rank 1: Frames(2 frames, 2 graphs, 1 break)" in looked
    )
    assert "→  - all_reduce" in looked


def test_the_copy_goes_and_the_collective_is_in_place(run):
    stages = {line.split()[0]: line.split()[1:] for line in run.text("cell-22-r03").splitlines() if line}
    (before,) = (found for name, found in stages.items() if "before_joint" in name)
    (after,) = (found for name, found in stages.items() if "after_joint" in name)
    assert (before, after) == (["all_reduce", "copy"], ["all_reduce"])
    assert list(stages.values())[-1] == ["all_reduce_"]
    said = run.text("cell-16-r03")
    assert "_c10d_functional.all_reduce_.default(" in said
    assert run.text("cell-28-r03").startswith("aot_forward of 0/0 MLP.forward")
    boxes = run.text("cell-28-r03").split("; ")
    assert [box.partition(" (")[0] for box in boxes[1:-1]] == [
        "permute, mm, mul + 4 more",
        "permute, mm",
        "all_reduce + wait",
        "copy",
        "add",
    ]


def test_a_part_a_transpose_and_a_later_reader_cost_a_copy_and_gradients_take_a_clone(run):
    said = run.text("cell-23-variants-r03")
    compiled, off, gradients = re.split(r"remove_noop_ops off: dist.all_reduce\(y\) (.*)\n", said)
    copies, off = {}, ast.literal_eval(off)
    for line in compiled.splitlines():
        if "dist." in line:
            copies[now := line] = []
        elif line.startswith(" "):
            kernel, steps = ast.literal_eval(line.strip())
            copies[now] += [kernel] if _copies(steps) else []
    assert [line for line, kernels in copies.items() if kernels] == [
        "dist.all_reduce(y[:2])",
        "dist.all_reduce(y.t())",
        "z = y.sin(); dist.all_reduce(y); y = y + z",
    ]
    assert len(copies) == 6 and [_copies(steps) for steps in off.values()] == [True]
    # y is 1 everywhere, and 4 rows of x are 1/8
    right = 4 * 8 * 0.731059 * (1 - 0.731059)
    wrong, refused, eager, double = (line.split(": ", 1)[1] for line in re.findall(r" +\S+: .*", gradients))
    assert (
        abs(float(wrong) - right) > 1 and refused.startswith("BackendCompilerFailed") and "Sigmoid" in refused
    )
    assert (float(eager), float(double)) == pytest.approx((right, 2 * right), abs=0.01)


def _copies(steps):
    """Whether a kernel stores what it loaded, and does nothing else."""
    return len(steps) == 2 and steps[0].split(" = ")[0] in re.findall(r"tmp\d+", steps[1])


def test_a_check_of_the_ranks_that_one_skips_leaves_each_in_another_collective(run):
    said = re.findall(r"caches off on .*", run.text("cell-32-r03"))
    if said:  # where torch has the check
        counted = [re.findall(r"(\d) hit, (\d) miss", line) for line in said]
        assert counted == [[(hit, miss)] * 2 for hit, miss in ("00", "01", "10")] + [[]]
        assert said[3].endswith("{0: 'all_reduce', 1: 'all_gather'}")

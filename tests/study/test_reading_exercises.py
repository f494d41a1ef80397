"""Lesson 03's exercises: every plausible mistake gets the hint for that mistake."""

from __future__ import annotations

import pytest

from labkit import check
from labkit.study.exercises import reading

pytestmark = pytest.mark.slow

BRANCH, KEPT = "if norm > limit:", "kept = y[y.abs().sum(-1) > 0.5]"


@pytest.mark.parametrize(
    "named, hint",
    [
        ([], "frames.breaks"),
        ("if norm > limit:", "returns a list"),
        (["if the norm is large"], "as they stand"),
        (["y = clip(y, 3.0)", KEPT], "inlined"),
        ([BRANCH, "return score(kept).sum() + y.mean(-1)"], "inlined"),
        ([BRANCH, KEPT, "if x.shape[0] > 2:"], "branches on shapes"),
        ([BRANCH], "a resumed one may break again"),
        ([KEPT], "a resumed one may break again"),
    ],
)
def test_wrong_lines(named, hint, shm_ranks):
    answer = check("reading.find", lambda: named, shm_ranks)
    assert not answer and hint in answer.hint, repr(answer)


def nothing(x):
    x + 1


def without_the_collective(x):
    import torch

    y = x * 2 + 1
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def one_branch_only(x):
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD).abs().sqrt()
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_prints(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = x * 2
    print(end="")
    y = funcol.all_reduce(y + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_hidden(x):
    import torch

    from labkit.study.exercises.unfamiliar import hidden_sum

    y = hidden_sum(x * 2 + 1)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_branches(x):
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = y.sqrt() if y.sum() > 0 else y.abs()
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_leaves_the_graph(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / y[y > 0].mean()


@pytest.mark.parametrize(
    "attempt, hint",
    [
        (nothing, "return the tensor"),
        (without_the_collective, "not those of `tangled`"),
        (one_branch_only, "not those of `tangled`"),
        (still_prints, "take it out"),
        (still_hidden, "hidden from the compiler"),
        (still_branches, "torch.where"),
        (still_leaves_the_graph, "count with a mask"),
    ],
)
def test_wrong_functions(attempt, hint, shm_ranks):
    answer = check("reading.one", attempt, shm_ranks)
    assert not answer and hint in answer.hint, repr(answer)


@pytest.mark.parametrize(
    "wrong, hint",
    [
        ({"unrolled": 4}, "given up"),
        ({"stepped": 6}, "once, however often"),
        ({"scaled": 3}, "takes any number"),
        ({"scaled": 1}, "takes any number"),
        ({"other": 1}, "for each of unrolled, stepped and scaled"),
    ],
)
def test_wrong_counts(wrong, hint, shm_ranks):
    right = {"unrolled": 0, "stepped": 2, "scaled": 2}
    answer = check("reading.count", lambda: right | wrong, shm_ranks)
    assert not answer and hint in answer.hint, repr(answer)
    assert check("reading.count", lambda: 7, shm_ranks).hint.startswith("my_counts() returns a dict")


def test_the_names_of_the_snippets_agree():
    from labkit.study.exercises.unfamiliar import SNIPPETS

    assert tuple(SNIPPETS) == reading.COUNTED

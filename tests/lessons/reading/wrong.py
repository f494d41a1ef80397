"""Plausible wrong answers to the exercises of lesson 03, each with words of the hint that it has to get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BRANCH, KEPT = "if norm > limit:", "kept = y[y.abs().sum(-1) > 0.5]"


def no_line():
    return []


def a_text():
    return BRANCH


def in_other_words():
    return ["if the norm is large"]


def the_callers_line():
    return ["y = clip(y, 3.0)", KEPT]


def a_branch_on_a_shape():
    return [BRANCH, KEPT, "if x.shape[0] > 2:"]


def the_first_one():
    return [BRANCH]


def returns_nothing(x):
    x.add(1)


def without_the_collective(x):
    import torch

    y = x * 2 + 1
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def adds_up_twice(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    funcol.wait_tensor(funcol.all_reduce(x, "sum", dist.group.WORLD))
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
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

    from labkit.lessons.reading.exercises.unfamiliar import hidden_sum

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


def a_number():
    return 7


def a_loop_has_graphs():
    return {"unrolled": 4, "stepped": 2, "scaled": 2}


def as_often_as_it_runs():
    return {"unrolled": 0, "stepped": 6, "scaled": 2}


def one_for_each_number():
    return {"unrolled": 0, "stepped": 2, "scaled": 3}


FIND: dict[Callable[..., Any], str] = {
    no_line: "frames.breaks",
    a_text: "returns a list",
    in_other_words: "as they stand",
    the_callers_line: "inlined",
    a_branch_on_a_shape: "branches on shapes",
    the_first_one: "a resumed one may break again",
}
ONE: dict[Callable[..., Any], str] = {
    returns_nothing: "return the tensor",
    without_the_collective: "not those of `tangled`",
    adds_up_twice: "add up once",
    still_prints: "take it out",
    still_hidden: "hidden from the compiler",
    still_branches: "torch.where",
    still_leaves_the_graph: "count with a mask",
}
COUNT: dict[Callable[..., Any], str] = {
    a_number: "returns a dict",
    a_loop_has_graphs: "cannot be resumed",
    as_often_as_it_runs: "once, however often",
    one_for_each_number: "takes any number",
}


WRONG = {"reading.find": FIND, "reading.one": ONE, "reading.count": COUNT}

"""Plausible wrong answers to the exercises of lesson 08, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from course.symmetry.exercises import line_of

SKIPS, WAITS = line_of("continue"), line_of("loss = forward(loader.next()).square().mean()")
A, B = {"rank": 2, "collective": 27, "line": SKIPS}, {"rank": 1, "collective": 37, "line": WAITS}


def only_one_run():
    return {"a": A}


def a_rank_in_words():
    return {"a": {**A, "rank": "rank 2"}, "b": B}


def who_waits():
    return {"a": {**A, "rank": 0}, "b": B}


def where_it_stands():
    return {"a": {**A, "line": WAITS}, "b": B}


def its_last_call():
    return {"a": A, "b": {**B, "collective": 36}}


def after_the_first():
    return {"a": {**A, "collective": 28}, "b": B}


def in_the_all_reduce():
    return {"a": A, "b": {**B, "line": line_of("dist.all_reduce(whole)")}}


def breaks(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return total if total.sum() > 0 else torch.zeros_like(total)


def by_its_own_shard(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(x.sum() > 0, total, torch.zeros_like(total))


def not_a_number(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(total.sum() > 0, total, torch.zeros_like(total)) * float("nan")


def number_by_number(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD).relu()


def also_at_zero(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(total.sum() >= 0, total, torch.zeros_like(total))


def by_the_first_number(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(total[0] > 0, total, torch.zeros_like(total))


def by_votes(x):
    votes = funcol.all_reduce(torch.sign(x.sum()), "sum", dist.group.WORLD)
    return torch.where(votes > 0, funcol.all_reduce(x, "sum", dist.group.WORLD), 0.0)


def of_two_ranks(x):
    parts = funcol.all_gather_tensor(x[None], 0, dist.group.WORLD)
    total = parts[0] + parts[1]
    return torch.where(total.sum() > 0, total, torch.zeros_like(total))


def in_a_row(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(total.sum() > 0, total, torch.zeros_like(total))[None]


def forgets_the_result(x):
    funcol.all_reduce(x, "sum", dist.group.WORLD)


FINDINGS = {
    only_one_run: "whole numbers",
    a_rank_in_words: "whole numbers",
    who_waits: "which one differs from the other three",
    where_it_stands: "which line of the loop",
    its_last_call: "all ranks made that one",
    after_the_first: "there is an earlier number",
    in_the_all_reduce: "where does the main thread of this one wait",
}
BRANCHES = {
    breaks: "torch.where",
    by_its_own_shard: "decide by the sum over all ranks",
    not_a_number: "decide by the sum over all ranks",
    number_by_number: "decide by the sum over all ranks",
    also_at_zero: "decide by the sum over all ranks",
    by_the_first_number: "decide by the sum over all ranks",
    by_votes: "decide by the sum over all ranks",
    of_two_ranks: "on three it is wrong",
    in_a_row: "decide by the sum over all ranks",
    forgets_the_result: "return the tensor",
}


WRONG = {"symmetry.dumps": FINDINGS, "symmetry.repair": BRANCHES}

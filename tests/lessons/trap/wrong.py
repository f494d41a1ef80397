"""Plausible wrong answers to the exercises of lesson 05, each with words of the hint that is meant for it."""

from __future__ import annotations

import time

import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from labkit.contract import dispatched
from labkit.lessons.cliff.program import functional, gated


def returns_the_sum(x):
    return functional(x)


def still_in_place(x):
    return gated(x)


def forgets_the_sum(x):
    functional(x)
    return x


def returns_nothing(x):
    x.copy_(functional(x))


def only_one_rank_s_own(x):
    x.mul_(dist.get_world_size() * (dist.get_world_size() + 1) / 2).div_(dist.get_rank() + 1)
    return x


BREAK = {
    returns_the_sum: "hands back another tensor",
    still_in_place: "the guardrail is content",
    forgets_the_sum: "a wrong sum would be found without",
    returns_nothing: "looks at what comes back",
    only_one_rank_s_own: "fails for another reason",
}


def by_the_clock(call):
    call()
    began = time.perf_counter()
    call()
    assert time.perf_counter() - began < 0.05


def by_the_type(call):
    assert not isinstance(call(), funcol.AsyncCollectiveTensor)


def exactly_one_operation(call):
    assert dispatched(call).total() == 1


def only_all_reduce(call):
    assert "_c10d_functional::all_reduce" not in dispatched(call)


def says_no(call):
    return "_c10d_functional::all_reduce" not in dispatched(call)


def never_calls(call):
    pass


def is_content(call):
    dispatched(call)


def always(call):
    call()
    raise AssertionError("no")


GUARD = {
    by_the_clock: "do not look at a clock",
    by_the_type: "only the dispatched operations tell",
    exactly_one_operation: "only functional ones are wrong",
    only_all_reduce: "nothing is guarded",
    says_no: "raise AssertionError",
    never_calls: "where its operations are counted",
    is_content: "which names does",
    always: "switched off within a week",
}


WRONG = {"trap.break_the_gate": BREAK, "trap.guardrail": GUARD}

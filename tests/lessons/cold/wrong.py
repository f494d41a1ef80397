"""Plausible wrong answers to the exercise of lesson 12, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch.distributed as dist


def the_largest(call, seen):
    call(max(seen))


def without_the_flag(call, seen):
    for rows in sorted({rows for rows, _ in seen}):
        call((rows, False))


def all_of_it(call, seen):
    for request in seen:
        call(request)


def each_in_its_own_order(call, seen):
    for request in sorted(set(seen), reverse=dist.get_rank() == 1):
        call(request)


def calls_nothing(call, seen):
    return sorted(set(seen))


def rows_alone(call, seen):
    for rows, _ in seen:
        call(rows)


WARMUPS = {
    the_largest: "the largest does not stand for the others",
    without_the_flag: "a flag that changes the code",
    all_of_it: "once is enough",
    each_in_its_own_order: "in the same order",
    calls_nothing: "nothing is warm yet",
    rows_alone: "a pair of rows and a flag",
}


WRONG = {"cold.warmup": WARMUPS}

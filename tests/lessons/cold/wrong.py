"""Plausible wrong answers to the exercises of lesson 12, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def sent(plans, followed):
    return list(followed(dict.fromkeys(plans) if dist.get_rank() == 0 else None))


def rounds(call, counted, plans, compare=True):
    everyone = [(True, None)] * dist.get_world_size()
    while any(compiled for compiled, _ in everyone):
        before = counted()
        for plan in plans:
            call(plan)
        dist.all_gather_object(everyone, (counted() != before, counted()))
    if compare and len({counts for _, counts in everyone}) > 1:
        raise RuntimeError("the counts differ")


def its_own_plans(call, counted, plans, followed):
    rounds(call, counted, dict.fromkeys(plans))


def one_round(call, counted, plans, followed):
    for plan in sent(plans, followed):
        call(plan)


def until_i_am_warm(call, counted, plans, followed):
    plans, before = sent(plans, followed), None
    while counted() != before:
        before = counted()
        for plan in plans:
            call(plan)


def one_round_more(call, counted, plans, followed):
    plans = sent(plans, followed)
    rounds(call, counted, plans)
    for plan in plans:
        call(plan)


def all_of_it(call, counted, plans, followed):
    rounds(call, counted, list(followed(plans)))


def the_largest(call, counted, plans, followed):
    rounds(call, counted, [max(sent(plans, followed))] * 5)


def each_in_its_own_order(call, counted, plans, followed):
    rounds(call, counted, sorted(sent(plans, followed), reverse=dist.get_rank() == 1))


def rows_alone(call, counted, plans, followed):
    rounds(call, counted, [rows for rows, _ in sent(plans, followed)])


def calls_nothing(call, counted, plans, followed):
    sent(plans, followed)


def compares_nothing(call, counted, plans, followed):
    rounds(call, counted, sent(plans, followed), compare=False)


def only_rank_0_raises(call, counted, plans, followed):
    rounds(call, counted, sent(plans, followed), compare=dist.get_rank() == 0)


def until_warm(call, counted, plans, of):
    """The last counts of every rank, each as `of` has it, after the warmup."""
    everyone = [(True, None)] * dist.get_world_size()
    while any(compiled for compiled, _ in everyone):
        before = counted()
        for plan in plans:
            call(plan)
        dist.all_gather_object(everyone, (counted() != before, of(counted())))
    return [one for _, one in everyone]


def breaks_alone(call, counted, plans, followed):
    if len(set(until_warm(call, counted, sent(plans, followed), lambda counts: counts[1]))) > 1:
        raise RuntimeError("the breaks differ")


def their_sums(call, counted, plans, followed):
    if len(set(until_warm(call, counted, sent(plans, followed), sum))) > 1:
        raise RuntimeError("the sums differ")


def any_break(call, counted, plans, followed):
    if any(until_warm(call, counted, sent(plans, followed), lambda counts: counts[1])):
        raise RuntimeError("a break")


def what_compiled_alone(call, counted, plans, followed):
    left = sent(plans, followed)
    while left:
        again = []
        for plan in left:
            before, everyone = counted(), [None] * dist.get_world_size()
            call(plan)
            dist.all_gather_object(everyone, counted() != before)
            again += [plan] * any(everyone)
        left = again


def with_its_neighbour(call, counted, plans, followed):
    """Ranks 0 and 1 compare; a third has nobody to ask."""
    plans, me, more, left = sent(plans, followed), dist.get_rank(), True, 10

    def both(number):
        mine, other = torch.tensor(number), torch.tensor(number)
        for sender in (0, 1) if me < 2 else ():
            dist.send(mine, 1 - me) if me == sender else dist.recv(other, 1 - me)
        return mine.tolist(), other.tolist()

    while more and left:
        before, left = counted(), left - 1
        for plan in plans:
            call(plan)
        more = any(both(int(counted() != before)))
    mine, other = both(counted())
    if more or mine != other:
        raise RuntimeError("the counts differ")


def by_a_message_of_its_own(call, counted, plans, followed):
    box = [list(dict.fromkeys(plans)) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    rounds(call, counted, box[0])


def without_a_bound(call, counted, plans, followed):
    rounds(call, counted, sent(plans, followed))


LOCKSTEPS = {
    its_own_plans: "send them first",
    one_round: "compile again at its second use",
    until_i_am_warm: "agree on the end",
    one_round_more: "stop after the first round",
    all_of_it: "not all traffic",
    the_largest: "comes in production",
    each_in_its_own_order: "in the same order",
    rows_alone: "a pair of rows and a flag",
    calls_nothing: "nothing is warm yet",
    compares_nothing: "graphs and breaks each",
    only_rank_0_raises: "raise on every rank",
    breaks_alone: "graphs and breaks each",
    their_sums: "graphs and breaks each",
    any_break: "counts are equal on all",
    what_compiled_alone: "each kind in each round",
    with_its_neighbour: "on any number",
    by_a_message_of_its_own: "requests come by `followed`",
    without_a_bound: "bound the rounds",
}


JOBS = {
    "A": ([0, 1], "another rank's code", "the rank in the key or folder"),
    "B": ([], "healthy", "nothing"),
    "C": ([], "healthy", "nothing"),
    "D": ([1], "an empty folder", "fill the folder first"),
    "E": ([0, 1], "bypassed", "a custom operator"),
}


def every_shared_key_is_poison():
    return {**JOBS, "B": ([0, 1], "another rank's code", "the rank in the key or folder")}


def hits_are_right():
    return {**JOBS, "A": ([], "healthy", "nothing")}


def other_keys_are_other_settings():
    return {**JOBS, "C": ([0, 1], "other settings", "nothing")}


def everybody_is_cold():
    return {**JOBS, "D": ([0, 1], "an empty folder", "fill the folder first")}


def delete_it():
    return {**JOBS, "A": ([0, 1], "another rank's code", "delete the folder at each start")}


def who_loads_it():
    return {**JOBS, "A": ([0], "another rank's code", "the rank in the key or folder")}


def a_miss():
    return {**JOBS, "E": ([0, 1], "an empty folder", "fill the folder first")}


def a_mask():
    return {**JOBS, "E": ([True, True], "bypassed", "a custom operator")}


def nested():
    return {**JOBS, "A": ([[0]], "another rank's code", "the rank in the key or folder")}


CACHES = {
    a_mask: "a list of 0 and 1",
    nested: "a list of 0 and 1",
    every_shared_key_is_poison: "do they also write, and load, one code",
    hits_are_right: "which does it load in the second",
    other_keys_are_other_settings: "what it wrote itself",
    everybody_is_cold: "on which ranks is it so",
    who_loads_it: "on which ranks is it so",
    delete_it: "a change that does not touch it",
    a_miss: "why is the other one not",
}

WRONG = {"cold.lockstep": LOCKSTEPS, "cold.caches": CACHES}

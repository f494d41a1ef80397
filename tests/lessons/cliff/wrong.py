"""Plausible wrong answers to the exercises of lesson 04, each with words of the hint that is meant for it."""

from __future__ import annotations

from labkit import lessons

cliff = lessons.program("cliff")


def returns_nothing(x):
    import torch.distributed as dist

    dist.all_reduce(x)


def forgets_the_result(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    if torch.compiler.is_compiling():
        funcol.all_reduce(x, "sum", dist.group.WORLD)
        return x
    dist.all_reduce(x)
    return x


def doubles(x):
    return x * 2


GATE = {
    returns_nothing: "return the tensor",
    doubles: "not the sum over all ranks",
    forgets_the_result: "return that one",
    cliff.functional: "take dist.all_reduce there",
    cliff.inplace: "rewritten with a copy back",
    cliff.disabled: "hides it from the compiler",
}


def keeps_the_branch(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        if x.max() > 6:
            x = x / 2
    return x


def keeps_the_collective(x):
    import torch

    for _ in range(8):
        x = cliff.disabled(x * 0.5) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def one_step(x):
    import torch

    x = cliff.disabled(x * 0.5) + 1
    return torch.where(x.max() > 6, x / 2, x)


def behind_a_call(x):
    for _ in range(8):
        x = one_step(x)
    return x


def in_place(x):
    import torch

    for _ in range(8):
        x = cliff.inplace(x * 0.5) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def on_its_argument(x):
    import torch

    for _ in range(8):
        x = cliff.inplace(x.mul_(0.5)) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def each_element(x):
    import torch

    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        x = torch.where(x > 6, x / 2, x)
    return x


def without_collectives(x):
    for _ in range(8):
        x = x * 0.5 + 1
    return x


def no_return(x):
    pass


def fullgraph(x):
    import torch

    return torch.compile(keeps_the_collective, fullgraph=True)(x)


LOOP = {
    keeps_the_branch: "with torch.where",
    keeps_the_collective: "gave the whole frame up",
    behind_a_call: "the collective still breaks",
    in_place: "use what the functional form returns",
    on_its_argument: "it changes the tensor it is given",
    each_element: "not those of `damped`",
    without_collectives: "in each of the 8 steps",
    no_return: "return x",
    fullgraph: "fullgraph=True turns the first break into this error",
}


def first_rank_only(record):
    return record.counts().iloc[0]["at_collective"] == 0


def last_rank_only(record):
    return record.counts().iloc[-1]["at_collective"] == 0


def static_counters(record):
    return (record.counts()["static_breaks"] == 0).all()


def forgets_what_was_given_up(record):
    return (record.counts()["at_collective"] == 0).all()


def the_wrong_way_round(record):
    return not forgets_what_was_given_up(record)


def a_number(record):
    return record.counts()["at_collective"].sum()


def always(record):
    return True


def only_regions(record):
    return bool((record.counts()["regions"] > 0).all())


AUDIT = {
    first_rank_only: "the other one falls to pieces",
    last_rank_only: "and rank 0 falls to pieces",
    static_counters: "no break is not the goal",
    forgets_what_was_given_up: "enters no region",
    the_wrong_way_round: "says False where it means True",
    a_number: "return True or False",
    always: "a gate tells records apart",
    only_regions: "these breaks stand at the collectives",
}

WRONG = {"cliff.gate": GATE, "cliff.loop": LOOP, "cliff.audit": AUDIT}

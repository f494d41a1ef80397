"""Plausible wrong answers to the exercises of lesson 04, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit import lessons

cliff = lessons.program("cliff")


FOUND = {"rank": 2, "line": 22, "regions": 41}


def peak_is(fix, **changes):
    """An answer: everything right but for `changes`, and the line `fix`."""

    def finding():
        return {**FOUND, "fix": fix, **changes}

    return finding


RIGHT_LINE = "self.peak = torch.maximum(top, torch.as_tensor(self.peak))"


def nothing_but_a_rank():
    return {"rank": 2}


def words_for_numbers():
    return {**FOUND, "rank": "rank 2", "fix": RIGHT_LINE}


SLOW = {
    nothing_but_a_rank: "three whole numbers",
    words_for_numbers: "three whole numbers",
    peak_is(RIGHT_LINE, rank=0): "add up `# of Calls`",
    peak_is(RIGHT_LINE, line=46): "for a print than forwards",
    peak_is(RIGHT_LINE, line=21): "that follows `in user code at",
    peak_is(RIGHT_LINE, regions=205): "the profile covers 5 forwards",
    peak_is(RIGHT_LINE, regions=8): "those are the names",
    peak_is(RIGHT_LINE, regions=36): "all rows of this rank together",
    peak_is("pass"): "the largest value of all its forwards",
    peak_is("self.peak = top"): "the largest value of all its forwards",
    peak_is("self.peak = max(self.peak, top.item())"): "asks a tensor for its value",
    peak_is("self.peak = max(self.peak, top)"): "asks a tensor for its value",
    peak_is("self.peak = max(self.peak, float(x.abs().max()))"): "the largest value of all its forwards",
    peak_is(
        "self.peak = torch.maximum(x.abs().amax(), torch.as_tensor(self.peak))"
    ): "the largest value of all its forwards",
    peak_is(
        "self.seen = [*getattr(self, 'seen', ()), top]\nself.peak = torch.stack(self.seen).max()"
    ): "must not grow from call to call",
    peak_is("x = x + 1"): "so leave x and top alone",
    peak_is("self.peak = ="): "Python that takes the place of the line",
}


def keeps_the_branch(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        if x.max() > 6:
            x = x / 2
    return x


def keeps_the_collective(x):
    for _ in range(8):
        x = cliff.disabled(x * 0.5) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def one_step(x):
    x = cliff.disabled(x * 0.5) + 1
    return torch.where(x.max() > 6, x / 2, x)


def behind_a_call(x):
    for _ in range(8):
        x = one_step(x)
    return x


def last_element(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        x = torch.where(x[-1] > 6, x / 2, x)
    return x


def only_in_eager(x):
    for _ in range(8):
        y = x * 0.5
        x = (y if torch.compiler.is_compiling() else cliff.functional(y)) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def on_its_argument(x):
    for _ in range(8):
        x = cliff.inplace(x.mul_(0.5)) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def each_element(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        x = torch.where(x > 6, x / 2, x)
    return x


def also_at_six(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        x = torch.where(x.max() >= 6, x / 2, x)
    return x


def a_little_below_six(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        x = torch.where(x.max() > 5.95, x / 2, x)
    return x


def of_magnitudes(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        x = torch.where(x.abs().max() > 6, x / 2, x)
    return x


def without_collectives(x):
    for _ in range(8):
        x = x * 0.5 + 1
    return x


def no_return(x):
    pass


def fullgraph(x):
    return torch.compile(keeps_the_collective, fullgraph=True)(x)


def solved(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


def no_numbers(x):
    return solved(x) * float("nan")


def another_shape(x):
    return solved(x)[None]


def not_in_the_last_step(x):
    for step in range(8):
        x = cliff.functional(x * 0.5) + 1
        if step < 7:
            x = torch.where(x.max() > 6, x / 2, x)
    return x


def for_two_ranks(x):
    for _ in range(8):
        x = cliff.functional(x * 0.5) / dist.get_world_size() * 2 + 1
        x = torch.where(x.max() > 6, x / 2, x)
    return x


LOOP = {
    keeps_the_branch: "to choose a branch",
    keeps_the_collective: "gave the whole frame up",
    behind_a_call: "the collective still breaks",
    last_element: "which value decides",
    only_in_eager: "does it look at the mode?",
    on_its_argument: "it changes the tensor it is given",
    each_element: "which value decides",
    also_at_six: "which value decides",
    a_little_below_six: "which value decides",
    of_magnitudes: "which value decides",
    without_collectives: "in each of the 8 steps",
    no_return: "the caller goes on with",
    no_numbers: "NaN or infinite",
    another_shape: "the shape of the result",
    not_in_the_last_step: "which value decides",
    for_two_ranks: "on three it is wrong",
    fullgraph: "fullgraph=True turns the first break into this error",
}


WRONG = {"cliff.slow": SLOW, "cliff.loop": LOOP}

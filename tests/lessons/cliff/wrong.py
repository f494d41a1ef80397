"""Plausible wrong answers to the exercises of lesson 04, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from labkit import lessons

cliff = lessons.program("cliff")


def fields(events):
    return len([e for e in events if e.name.startswith("Torch-Compiled Region")])


def census(
    events,
    *,
    beginnings=("c10d::", "_c10d_functional::", "shm:"),
    waits=("wait_tensor", "_autograd"),
    by=None,
):
    """The right count, and what a reader may get wrong about it."""

    def inside(event, others):
        start, end = event.time_range.start, event.time_range.end
        return any(o is not event and o.time_range.start <= start and end <= o.time_range.end for o in others)

    regions = [e for e in events if e.name.startswith("Torch-Compiled Region")]
    graphs = [e for e in events if e.name.startswith("## Call CompiledFxGraph")]
    found = [e for e in events if e.name.startswith(beginnings) and not e.name.endswith(waits)]
    if by != "each event":
        found = [e for e in found if not inside(e, found)]
    outside = [e for e in found if by == "outside of regions" or not inside(e, graphs)]
    if by == "outside of regions":
        outside = [e for e in found if not inside(e, regions)]
    different = len({e.name for e in regions}) if by == "names" else len(regions)
    return {"regions": different, "collectives": len(found), "outside": len(outside)}


def by_names(events):
    return census(events, by="names")


def each_event(events):
    return census(events, by="each event")


def with_waits(events):
    return census(events, waits=("nothing",))


def in_place_only(events):
    return census(events, beginnings=("c10d::all_reduce",))


def outside_of_regions(events):
    return census(events, by="outside of regions")


def lookups(events):
    right = census(events)
    return {**right, "regions": sum("Cache Lookup" in e.name for e in events) + 1}


def inductors_graphs(events):
    return {**census(events), "regions": sum(e.name.startswith("## Call CompiledFxGraph") for e in events)}


CENSUS = {
    fields: "return a dict with the keys",
    by_names: "count events, not names",
    each_event: "count those that lie in no other",
    with_waits: "are no collectives, though their names begin alike",
    in_place_only: "some collectives have another name",
    outside_of_regions: "within a `## Call CompiledFxGraph` event",
    lookups: "and nothing else is one",
    inductors_graphs: "a region can run without a graph of Inductor's",
}


def share(whole, dim, rank, world_size):
    return torch.nn.Parameter(whole.chunk(world_size, dim)[rank].clone())


class Layer(torch.nn.Module):
    """The right split, and what a reader may get wrong about it."""

    def __init__(self, gate, up, down, rank, world_size):
        super().__init__()
        self.gate, self.up = (share(w, 0, rank, world_size) for w in (gate, up))
        self.down = share(down, 1, rank, world_size)
        self.rank, self.world_size = rank, world_size

    def hidden(self, x):
        return F.silu(F.linear(x, self.gate)) * F.linear(x, self.up)

    def forward(self, x):
        return cliff.functional(F.linear(self.hidden(x), self.down))


class Plain:
    def __init__(self, gate, up, down, rank, world_size):
        pass


class WholeWeights(Layer):
    def __init__(self, gate, up, down, rank, world_size):
        torch.nn.Module.__init__(self)
        self.gate, self.up, self.down = (torch.nn.Parameter(w) for w in (gate, up, down))

    def forward(self, x):
        return F.linear(self.hidden(x), self.down)


class NoSum(Layer):
    def forward(self, x):
        return F.linear(self.hidden(x), self.down)


class SumsTooLate(Layer):
    """gate and up by columns, and silu on parts of sums."""

    def __init__(self, gate, up, down, rank, world_size):
        torch.nn.Module.__init__(self)
        self.gate, self.up, self.down = (share(w, 1, rank, world_size) for w in (gate, up, down))
        self.rank, self.world_size = rank, world_size

    def forward(self, x):
        hidden = self.hidden(x.chunk(self.world_size, -1)[self.rank])
        return cliff.functional(F.linear(hidden.chunk(self.world_size, -1)[self.rank], self.down))


class SumsTwice(Layer):
    def forward(self, x):
        half = cliff.functional(F.linear(self.hidden(x), self.down))
        return (half + cliff.functional(F.linear(self.hidden(x), self.down))) / 2


class ChangesItsInput(Layer):
    def forward(self, x):
        y = cliff.functional(F.linear(self.hidden(x), self.down))
        x.zero_()
        return y


class HiddenSum(Layer):
    def forward(self, x):
        return cliff.disabled(F.linear(self.hidden(x), self.down))


class InPlaceSum(Layer):
    def forward(self, x):
        return cliff.inplace(F.linear(self.hidden(x), self.down))


class NoNumbers(Layer):
    def forward(self, x):
        return super().forward(x) * float("nan")


class Views(Layer):
    def __init__(self, gate, up, down, rank, world_size):
        torch.nn.Module.__init__(self)
        self.gate, self.up = (torch.nn.Parameter(w.chunk(world_size, 0)[rank]) for w in (gate, up))
        self.down = torch.nn.Parameter(down.chunk(world_size, 1)[rank])


class TwoRanksOnly(Layer):
    def __init__(self, gate, up, down, rank, world_size):
        super().__init__(gate, up, down, rank, 2)


LAYER = {
    Plain: "derive the class from nn.Module",
    WholeWeights: "a rank keeps one part in 2",
    NoSum: "add the parts up over the ranks",
    SumsTooLate: "silu needs whole sums before it",
    SumsTwice: "once is enough",
    ChangesItsInput: "it changes the tensor that it is given",
    HiddenSum: "use the all-reduce that it can trace",
    InPlaceSum: "use what the functional form returns",
    NoNumbers: "NaN or infinite",
    Views: "a chunk is a view",
    TwoRanksOnly: "on three it is wrong",
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


def in_place(x):
    for _ in range(8):
        x = cliff.inplace(x * 0.5) + 1
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
    keeps_the_branch: "with torch.where",
    keeps_the_collective: "gave the whole frame up",
    behind_a_call: "the collective still breaks",
    in_place: "use what the functional form returns",
    on_its_argument: "it changes the tensor it is given",
    each_element: "not those of `damped`",
    without_collectives: "in each of the 8 steps",
    no_return: "return x",
    no_numbers: "NaN or infinite",
    another_shape: "the shape of the result",
    not_in_the_last_step: "not those of `damped`",
    for_two_ranks: "on three it is wrong",
    fullgraph: "fullgraph=True turns the first break into this error",
}


WRONG = {"cliff.census": CENSUS, "cliff.layer": LAYER, "cliff.loop": LOOP}

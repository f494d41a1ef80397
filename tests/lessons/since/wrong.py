"""Plausible wrong answers to the exercises of lesson 17, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from labkit import lessons

all_gather = lessons.program("since").all_gather


def by_hand(x, me):
    first = 2 * dist.get_rank()
    return all_gather(x[first : first + 2] * 2, dist.group.WORLD)


def no_gather(x, me):
    return x * 2


def own_part(x, me):
    return x.index_select(0, 2 * me + torch.arange(2)) * 2


def in_two_graphs(x, me):
    mine = x.index_select(0, 2 * me + torch.arange(2)) * 2
    torch._dynamo.graph_break()
    return all_gather(mine, dist.group.WORLD)


def baked_in(x, me):
    rows = 2 * torch.tensor([dist.get_rank()]) + torch.arange(2)
    return all_gather(x.index_select(0, rows) * 2, dist.group.WORLD)


def a_column(x, me):
    return all_gather((x.index_select(1, me) * 2).T.contiguous(), dist.group.WORLD).T


def baked_into_the_mesh(x, mesh):
    rows = (3 * torch.tensor([mesh.get_local_rank()]) + torch.arange(3)).clamp(max=4)
    return all_gather(x.index_select(0, rows) * 2, mesh)[:5]


def _there_and_back(x, mesh, dim):
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return (whole.redistribute(placements=[Shard(dim)]) * 2).redistribute(placements=[Replicate()])


def a_dtensor(x, mesh):
    return _there_and_back(x, mesh, 0)


def its_own_column(x, mesh):
    return _there_and_back(x, mesh, 1).to_local()


def padded(x, mesh):
    mine = x.tensor_split(mesh.size())[mesh.get_local_rank()] * 2
    return all_gather(F.pad(mine, (0, 0, 0, 3 - len(mine))), mesh)[:5]


def only_mine(x, mesh):
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return (whole.redistribute(placements=[Shard(0)]) * 2).to_local()


def whole(x, mesh):
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local() * 2


def only_numbers():
    return {"c", "d"}


def sizes_too():
    return {"b", "c", "d", "f"}


def none_stays():
    return set()


def a_list():
    return ["c", "d"]


def rows_and_columns():
    return [Shard(0), Shard(1)]


def summed_twice():
    return [Partial(), Partial()]


def one_placement():
    return [Shard(1)]


DATA = {
    by_hand: "Python's numbers become constants",
    no_gather: "the work is to be shared",
    own_part: "every rank returns all rows",
    in_two_graphs: "breaks the graph",
    baked_in: "a constant of the graph as well",
    a_column: "the work is to be shared",
}
SWITCHED = {
    padded: "Python's numbers become constants",
    only_mine: "every rank returns all rows",
    whole: "the work is to be shared",
    baked_into_the_mesh: "a constant of the graph as well",
    a_dtensor: "every rank returns all rows",
    its_own_column: "the work is to be shared",
}
STAYS = {
    only_numbers: "distribute_tensor cuts the whole tensor in Python",
    sizes_too: "the size of a mesh is the same on every rank",
    none_stays: "no number of your Python's",
    a_list: "a set of letters",
}
PLACED = {
    rows_and_columns: "have to be added",
    summed_twice: "cut along the columns",
    one_placement: "a list of two placements",
}

WRONG = {
    "since.rank_as_data": DATA,
    "since.with_the_switch": SWITCHED,
    "since.stays": STAYS,
    "since.placements": PLACED,
}

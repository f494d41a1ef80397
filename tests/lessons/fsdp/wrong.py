"""Plausible wrong answers to the exercises of lesson 14, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from lessons.fsdp.wrong_bucket import BUCKET
from torch import nn


def _module(forward):
    def make():
        return type("Gather", (nn.Module,), {"forward": forward})()

    make.__name__ = forward.__name__
    return make


def _summed(self, piece):
    return funcol.all_gather_tensor(piece, 0, dist.group.WORLD)


def _columns(self, piece):
    return funcol.all_gather_tensor(piece, 1, dist.group.WORLD)


def _halved(self, piece):
    return funcol.all_gather_tensor(piece / dist.get_world_size(), 0, dist.group.WORLD)


def _for_two(self, piece):
    whole = funcol.all_gather_tensor(piece, 0, dist.group.WORLD)
    return whole / 2 + (whole - whole / 2).detach()


def _backwards(self, piece):
    whole = funcol.all_gather_tensor(piece, 0, dist.group.WORLD)
    return torch.cat(whole.chunk(dist.get_world_size())[::-1])


def _in_place(self, piece):
    whole = torch.empty(piece.shape[0] * dist.get_world_size(), piece.shape[1])
    dist.all_gather_into_tensor(whole, piece.detach())
    return whole


def _padded(self, piece):
    rank, size = dist.get_rank(), dist.get_world_size()
    share = piece / size + (piece - piece / size).detach()
    rows = [share if i == rank else torch.zeros_like(piece) for i in range(size)]
    return funcol.all_reduce(torch.cat(rows), "sum", dist.group.WORLD)


def _handle(self, piece):
    whole = torch.empty(piece.shape[0] * dist.get_world_size(), piece.shape[1])
    dist.all_gather_into_tensor(whole, piece, async_op=True).wait()
    return whole


def _not_a_module():
    return lambda piece: piece


GATHERED = {
    _module(_summed): "divide once by the number of ranks",
    _module(_columns): "gather along dimension 0",
    _module(_in_place): "the functional form has a backward",
    _module(_handle): "a functional collective, a tensor in and a tensor out",
    _module(_halved): "the weight keeps its values",
    _module(_for_two): "look for a number that is dist.get_world_size()",
    _module(_backwards): "in the order of the ranks",
    _module(_padded): "for more bytes than needed",
    _not_a_module: "returns a module",
}


def nothing(order, i, backward):
    return []


def forgets_to_return(order, i, backward):
    order[i + 1 : i + 2]


def always_the_next(order, i, backward):
    return order[i + 1 : i + 2]


def everything(order, i, backward):
    return order[i + 1 :] if not backward else []


def forward_only(order, i, backward):
    return [] if backward else order[i + 1 : i + 2]


AHEAD = {
    nothing: "in forward the next unit is order[i + 1]",
    forgets_to_return: "returns a list of units",
    always_the_next: "from the last to the first",
    everything: "each further one holds memory",
    forward_only: "the first block that it needs is the last one",
}


class _Steps:
    def __init__(self, step):
        self.step = step


def _trainable(parameters):
    return [p for p in parameters if p.requires_grad]


def _flat(tensors):
    flat = torch.cat([t.detach().flatten() for t in tensors])
    return nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))


def _sharded(parameters, make, reduce, gathers=True):
    parameters, rank, size = _trainable(parameters), dist.get_rank(), dist.get_world_size()
    piece = nn.Parameter(_flat(parameters).chunk(size)[rank].clone())
    optimizer = make([piece])

    def step():
        piece.grad = reduce(_flat(p.grad for p in parameters))
        optimizer.step()
        rows = [torch.zeros_like(piece) for _ in range(size)]
        if gathers:
            dist.all_gather(rows, piece.detach())
        else:
            rows = list(_flat(parameters).chunk(size))
            rows[rank] = piece.detach()
        sizes = [p.numel() for p in parameters]
        for p, new in zip(parameters, torch.cat(rows)[: sum(sizes)].split(sizes), strict=True):
            p.data.copy_(new.view(p.shape))

    return _Steps(step)


def _spoilt(step):
    def spoils(parameters, make):
        parameters = list(parameters)
        made = step(parameters, make)

        def and_spoils():
            made.step()
            for p in parameters:
                p.data *= float("nan")

        return _Steps(and_spoils)

    spoils.__name__ = "spoilt"
    return spoils


def _scattered(flat, share):
    mine = torch.empty_like(flat.chunk(dist.get_world_size())[0])
    dist.reduce_scatter(mine, list(flat.chunk(dist.get_world_size())))
    return mine * share


def _reduced(flat):
    dist.all_reduce(flat)
    return flat.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()


def sums(parameters, make):
    return _sharded(parameters, make, lambda flat: _scattered(flat, 1))


def right(parameters, make):
    return _sharded(parameters, make, lambda flat: _scattered(flat, 1 / dist.get_world_size()))


def for_two(parameters, make):
    return _sharded(parameters, make, lambda flat: _scattered(flat, 1 / 2))


def keeps_it_to_itself(parameters, make):
    return _sharded(parameters, make, lambda flat: _scattered(flat, 1 / dist.get_world_size()), gathers=False)


def reduces_all(parameters, make):
    return _sharded(parameters, make, _reduced)


def never_reduces(parameters, make):
    return _sharded(parameters, make, lambda flat: flat.chunk(dist.get_world_size())[dist.get_rank()])


def state_of_all(parameters, make):
    parameters = _trainable(parameters)
    optimizer = make(parameters)

    def step():
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()

    return _Steps(step)


def some_parameters_each(parameters, make):
    mine = list(parameters)[dist.get_rank() :: dist.get_world_size()]
    return make(mine)


def frozen_too(parameters, make):
    parameters, size = list(parameters), dist.get_world_size()
    made = _sharded(parameters, make, lambda flat: _scattered(flat, 1 / size))

    def step():
        [p.grad.detach() for p in parameters]
        made.step()

    return _Steps(step)


def no_step(parameters, make):
    return None


OPTIMIZER = {
    sums: "divide once",
    keeps_it_to_itself: "every rank needs all parts",
    reduces_all: "a rank needs only its part of the sum",
    never_reduces: "reduce them before the update",
    _spoilt(right): "no numbers any more",
    for_two: "look for a number that is dist.get_world_size()",
    state_of_all: "give `make` this rank's part only",
    some_parameters_each: "pad the flat vector with zeros",
    no_step: "returns an object with a method step()",
    frozen_too: "returns an object with a method step()",
}


WRONG = {"fsdp.gather": GATHERED, "fsdp.ahead": AHEAD, "fsdp.optimizer": OPTIMIZER, "fsdp.bucket": BUCKET}

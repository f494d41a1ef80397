"""Plausible wrong answers to the exercises of lesson 02, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def in_place(x):
    dist.broadcast(x, 0)
    return x


def functional(x):
    return funcol.broadcast(x, 0, dist.group.WORLD)


def returns_nothing(x):
    dist.broadcast(x, 0)


def drops_the_value(x):
    if torch.compiler.is_compiling():
        funcol.broadcast(x, 0, dist.group.WORLD)
        return x
    return in_place(x)


def from_rank_1(x):
    dist.broadcast(x, 1)
    return x


def gathers_all(x):
    if torch.compiler.is_compiling():
        return funcol.all_gather_tensor(x, 0, dist.group.WORLD)[: len(x)]
    return in_place(x)


def mean(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD) / dist.get_world_size()


def averaged(x):
    return funcol.all_reduce(x, "avg", dist.group.WORLD)


def mean_in_place(x):
    y = x / dist.get_world_size()
    dist.all_reduce(y)
    return y


def only_the_sum(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def changes_its_argument(x):
    dist.all_reduce(x)
    return x / dist.get_world_size()


def detached(x):
    return mean(x.detach()) + 0 * x


@torch.compiler.disable
def hidden(x):
    return mean(x)


def behind_a_break(x):
    return hidden(x * 1) * 1


def no_mean(x):
    mean(x)


GATE = {
    in_place: "dist.broadcast breaks the graph",
    functional: "eager pays for a new tensor",
    returns_nothing: "return the tensor",
    drops_the_value: "return what they return",
    from_rank_1: "which is what rank 0 has",
    gathers_all: "the graph makes a tensor that nobody needs",
}
MEAN = {
    averaged: "gradients pass through a functional sum only",
    mean_in_place: "each rank has its own share alone",
    only_the_sum: "divided by how many there are",
    changes_its_argument: "belongs to the caller",
    detached: "stops the gradient or scales it",
    behind_a_break: "it should be one graph",
    no_mean: "return the mean",
}


WRONG = {"semantics.gate": GATE, "semantics.mean": MEAN}

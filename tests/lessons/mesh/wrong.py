"""Plausible wrong answers to the exercise of lesson 11, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def by_the_world(part, mesh, ranks):
    total = torch.zeros(4) if part is None else part.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def over_the_world(part, mesh, ranks):
    total = torch.zeros(4) if part is None else part.clone()
    dist.all_reduce(total)
    return total / len(ranks)


def everybody_calls(part, mesh, ranks):
    total = torch.zeros(4) if part is None else part.clone()
    dist.all_reduce(total, group=mesh)
    return total / len(ranks)


def only_inside(part, mesh, ranks):
    if part is None:
        return None
    dist.all_reduce(part, group=mesh)
    return part / len(ranks)


def _mean(part, mesh, ranks):
    if part is None:
        return torch.zeros(4)
    total = part.clone()
    dist.all_reduce(total, group=mesh)
    return total / len(ranks)


def from_rank_0(part, mesh, ranks):
    mean = _mean(part, mesh, ranks)
    dist.broadcast(mean, 0)
    return mean


def from_rank_1(part, mesh, ranks):
    mean = _mean(part, mesh, ranks)
    dist.broadcast(mean, 1)
    return mean


def from_the_last_rank(part, mesh, ranks):
    mean = _mean(part, mesh, ranks)
    dist.broadcast(mean, dist.get_world_size() - 1)
    return mean


def the_largest(part, mesh, ranks):
    mean = _mean(part, mesh, ranks)
    dist.all_reduce(mean, dist.ReduceOp.MAX)
    return mean


def in_a_row(part, mesh, ranks):
    mean = _mean(part, mesh, ranks)
    dist.broadcast(mean, ranks[0])
    return mean[None]


def nobody_listens(part, mesh, ranks):
    mean = _mean(part, mesh, ranks)
    if part is not None:
        dist.broadcast(mean, ranks[0])
    return mean


MEANS = {
    by_the_world: "the world's size is another one",
    over_the_world: "the sum is not the mesh's own",
    everybody_calls: "warns and does nothing",
    only_inside: "some rank returns None",
    from_rank_0: "from a rank that has the mean",
    from_rank_1: "another mesh has other ranks",
    from_the_last_rank: "another mesh has other ranks",
    the_largest: "another mesh has other ranks",
    in_a_row: "a tensor like `part`",
    nobody_listens: "the ranks wait for each other",
}


WRONG = {"mesh.mean": MEANS}

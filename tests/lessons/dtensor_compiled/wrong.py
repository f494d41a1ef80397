"""Plausible wrong answers to the exercises of lesson 10b, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard


def whole(x):
    return x.redistribute(placements=[Replicate()])


def product(x, gate, up, down):
    return (F.gelu(x @ gate) * (x @ up)) @ down


def cut(y):
    return y.redistribute(placements=[Shard(0)])


def always_the_tokens(x, gate, up, down):
    return cut(product(whole(x), gate, up, down))


def always_the_weights(x, gate, up, down):
    return cut(product(x, whole(gate), whole(up), whole(down)))


def the_smaller_tensor(x, gate, up, down):
    way = always_the_tokens if x.numel() <= up.numel() else always_the_weights
    return way(x, gate, up, down)


def twice(x, gate, up, down):
    if 2 * len(x) > 3 * len(down):
        return always_the_weights(x, gate, up, down)
    return cut((F.gelu(whole(x) @ gate) * (whole(x) @ up)) @ down)


def sums_for_everybody(x, gate, up, down):
    return cut(whole(product(whole(x), gate, up, down)))


def stays_whole(x, gate, up, down):
    return whole(product(whole(x), gate, up, down))


def scaled(x, gate, up, down):
    return 2 * always_the_tokens(x, gate, up, down)


def plain(x, gate, up, down):
    return always_the_tokens(x, gate, up, down).to_local()


def as_objects(x, gate, up, down):
    """All weights, as pickled objects: no collective is counted."""
    gate, up, down = (gathered(w) for w in (gate, up, down))
    return DTensor.from_local(
        product(x.to_local(), gate, up, down), x.device_mesh, [Shard(0)], run_check=False
    )


def gathered(w):
    parts = [None] * w.device_mesh.size()
    dist.all_gather_object(parts, w.to_local())
    return torch.cat(parts, w.placements[0].dim)


def by_send(x, gate, up, down):
    """All weights, by send and recv between two ranks."""
    gate, up, down = (exchanged(w) for w in (gate, up, down))
    return DTensor.from_local(
        product(x.to_local(), gate, up, down), x.device_mesh, [Shard(0)], run_check=False
    )


def exchanged(w):
    rank, mine = dist.get_rank(), w.to_local().contiguous()
    other = torch.empty_like(mine)
    for sender in (0, 1):
        dist.send(mine, 1 - rank) if sender == rank else dist.recv(other, 1 - rank)
    return torch.cat([mine, other] if rank == 0 else [other, mine], w.placements[0].dim)


def at_four_thirds(x, gate, up, down):
    way = always_the_tokens if 3 * len(x) <= 4 * len(down) else always_the_weights
    return way(x, gate, up, down)


def at_five_thirds(x, gate, up, down):
    way = always_the_tokens if 3 * len(x) <= 5 * len(down) else always_the_weights
    return way(x, gate, up, down)


TRAFFIC = {
    always_the_tokens: "here three weights are less",
    always_the_weights: "are less than three weights",
    the_smaller_tensor: "are less than three weights",
    twice: "x is used twice",
    sums_for_everybody: "reduce-scatter is half of it",
    stays_whole: "as x came",
    scaled: "first right, then cheap",
    plain: "split by tokens as x is",
    as_objects: "where no collective is counted",
    by_send: "where no collective is counted",
    at_four_thirds: "are less than three weights",
    at_five_thirds: "here three weights are less",
}

F_BACKWARD, SETTLE = "all-reduce in the backward before up", "Replicate() after down"


def said(**changed):
    right = {
        "A": ([0, 1], "no f", F_BACKWARD),
        "B": ([1], "uneven shards", "pad the rows"),
        "C": ([0, 1], "open Partial", SETTLE),
    }
    return lambda: {**right, **changed}


JOBS = {
    said(A=([0], "no f", F_BACKWARD)): "compare the four gradients",
    said(A=([0, 1], "no g", F_BACKWARD)): "follow the gradient from mm_7",
    said(A=([0, 1], "no f", "all-reduce after down")): "the sum after down is there",
    said(A=([0, 1], "no f", SETTLE)): "this job has no DTensor",
    said(A=([0, 1], "no f", "all-reduce the weights' gradients")): "gradients of different weights",
    said(B=([0], "uneven shards", "pad the rows")): "which one calls an old graph",
    said(B=([1], "type", "pad the rows")): "what does the guard of the first graph compare",
    said(B=([1], "uneven shards", "dynamic=False")): "with static sizes neither rank compiles",
    said(B=([1], "uneven shards", "recompile_limit")): "rank 1 does not try",
    said(C=([0], "open Partial", SETTLE)): "who compiles at 640 tokens",
    said(C=([0, 1], "uneven shards", SETTLE)): "a comparison of two costs",
    said(C=([0, 1], "open Partial", "dynamic=False")): "every new number of tokens compiles",
    said(C=([0, 1], "open Partial", "recompile_limit")): "that allows more compiles",
    said(C=([0, 1], "open Partial", "pad the rows")): "the remedy of another one",
    said(A=([0, 1], "f", F_BACKWARD)): "one of 'no f', 'no g'",
    lambda: [1, 0]: "ranks, cause and change of each job",
}

WRONG = {"dtensor_compiled.bytes": TRAFFIC, "dtensor_compiled.jobs": JOBS}

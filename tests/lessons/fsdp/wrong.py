"""Plausible wrong answers to the exercises of lesson 14, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
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
    _module(_padded): "for more bytes than needed",
    _not_a_module: "returns a module",
}


WRONG = {"training.gather": GATHERED}

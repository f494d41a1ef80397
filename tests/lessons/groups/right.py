"""Right answers to the exercises of lesson 01 in other words than those of the solutions."""

from __future__ import annotations

import torch
import torch.distributed as dist
from lessons.groups.wrong import ring


def padded(x):
    size = dist.get_world_size()
    missing = -len(x) % size
    whole = ring(torch.nn.functional.pad(x, (0, missing)))
    return whole[: len(x)]


def blocking(x):
    """Sends and receives that block: even ranks send first, and with an odd number of ranks the last one waits."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = list(x.clone().tensor_split(size))
    for step in range(2 * (size - 1)):
        out, into = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        arriving = torch.empty_like(into)
        if rank % 2 == 0:
            dist.send(out, (rank + 1) % size)
            dist.recv(arriving, (rank - 1) % size)
        else:
            dist.recv(arriving, (rank - 1) % size)
            dist.send(out, (rank + 1) % size)
        into.copy_(into + arriving if step < size - 1 else arriving)
    return torch.cat(parts)


def to_the_left(x):
    """The same ring the other way round."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = list(x.clone().tensor_split(size))
    for step in range(2 * (size - 1)):
        out, into = parts[(rank + step) % size], parts[(rank + step + 1) % size]
        arriving = torch.empty_like(into)
        sent = dist.isend(out, (rank - 1) % size)
        dist.recv(arriving, (rank + 1) % size)
        sent.wait()
        into.copy_(into + arriving if step < size - 1 else arriving)
    return torch.cat(parts)


def counted(env):
    a_node = int(env["SLURM_NTASKS"]) // int(env["SLURM_NNODES"])
    return {"missing": 3, "twice": 1, "rank": int(env["SLURM_NODEID"]) * a_node + int(env["SLURM_LOCALID"])}


RIGHT = {"groups.ring": (ring, padded, blocking, to_the_left), "groups.start": (counted,)}

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


def listed(env):
    """Slurm's list of this node's tasks."""
    return {"missing": 3, "twice": 1, "rank": int(env["SLURM_GTIDS"].split(",")[int(env["SLURM_LOCALID"])])}


def per_node(env):
    a_node = int(env["SLURM_TASKS_PER_NODE"].partition("(")[0])
    return {"missing": 3, "twice": 1, "rank": int(env["SLURM_NODEID"]) * a_node + int(env["SLURM_LOCALID"])}


def round_robin(env):
    """One task of each node after the other, as with srun --distribution=cyclic."""
    nodes = int(env["SLURM_NNODES"])
    return {"missing": 3, "twice": 1, "rank": int(env["SLURM_LOCALID"]) * nodes + int(env["SLURM_NODEID"])}


def batched(x):
    """The parts start one further, and both halves of a step are started together."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    parts = [part.clone() for part in x.tensor_split(size)]

    def step(out, into):
        ops = [dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, into, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    for i in range(size - 1):
        mine = (rank - i - 2) % size
        arriving = torch.empty_like(parts[mine])
        step(parts[(rank - i - 1) % size], arriving)
        parts[mine] = parts[mine] + arriving
    for i in range(size - 1):
        step(parts[(rank - i) % size], parts[(rank - i - 1) % size])
    return torch.cat(parts)


def other_neighbour(x):
    """A ring in another order: 0, 2, 1, 3."""
    order, size = [0, 2, 1, 3], dist.get_world_size()
    me = order.index(dist.get_rank())
    right, left = order[(me + 1) % size], order[(me - 1) % size]
    parts = list(x.clone().tensor_split(size))
    for step in range(2 * (size - 1)):
        out, into = parts[(me - step) % size], parts[(me - step - 1) % size]
        arriving = torch.empty_like(into)
        sent = dist.isend(out, right)
        dist.recv(arriving, left)
        sent.wait()
        into.copy_(into + arriving if step < size - 1 else arriving)
    return torch.cat(parts)


RIGHT = {
    "groups.ring": (ring, padded, blocking, to_the_left, batched, other_neighbour),
    "groups.start": (counted, listed, per_node, round_robin),
}

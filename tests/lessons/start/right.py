"""Right answers to the exercises of lesson 00 in other words than those of the solutions."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from lessons.start.wrong import as_it_was, message, with_message


def waits(value, device):
    x = torch.tensor(value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait()
    return x.item()


def gathers(value, device):
    values = [torch.zeros(1, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.tensor([value], device=device))
    return max(value.item() for value in values)


def gathers_objects(value, device):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return max(values)


def reduces_and_broadcasts(value, device):
    x = torch.tensor(value, device=device)
    dist.reduce(x, 0, op=dist.ReduceOp.MAX)
    dist.broadcast(x, 0)
    return x.item()


def gathers_and_broadcasts_objects(value, device):
    values = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values)
    box = [max(values) if values else None]
    dist.broadcast_object_list(box)
    return box[0]


def broadcasts_each(value, device):
    values = []
    for rank in range(dist.get_world_size()):
        x = torch.tensor(value, device=device)
        dist.broadcast(x, src=rank)
        values.append(x.item())
    return max(values)


def smallest_of_negatives(value, device):
    x = torch.tensor(-value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return -x.item()


def reorders_the_print(compile):
    torch._dynamo.config.reorderable_logging_functions.add(print)
    return as_it_was(compile)


def prints_after(compile):
    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return y.clamp(min=0)

    compiled = compile(layer, fullgraph=True)

    def call(x, w):
        y = compiled(x, w)
        message()
        return y

    return call


def is_functional(compile):
    def layer(x, w):
        return torch.relu(funcol.all_reduce(x @ w, "sum", dist.group.WORLD))

    return with_message(compile(layer))


def gathers_parts(compile):
    def layer(x, w):
        y = x @ w
        parts = [torch.empty_like(y) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, y)
        return torch.relu(sum(parts))

    return with_message(compile(layer))


RIGHT = {
    "start.largest": (
        waits,
        gathers,
        gathers_objects,
        reduces_and_broadcasts,
        gathers_and_broadcasts_objects,
        broadcasts_each,
        smallest_of_negatives,
    ),
    "start.one_graph": (reorders_the_print, prints_after, is_functional, gathers_parts),
}

"""Plausible wrong answers to the exercise of lesson 00, each with words of the hint that is meant for it."""

from __future__ import annotations


def summed(device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(dist.get_rank(), device=device)
    dist.all_reduce(x)
    return x.item()


def reduced_to_one(device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(dist.get_rank(), device=device)
    dist.reduce(x, 0, op=dist.ReduceOp.MAX)
    return x.item()


def does_not_wait(device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(dist.get_rank(), device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    return x.item()


def in_two(device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(dist.get_rank(), device=device)
    dist.barrier()
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


def without_asking(device):
    import torch.distributed as dist

    return dist.get_world_size() - 1


def a_tensor(device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(dist.get_rank(), device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def smallest(device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(dist.get_rank(), device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return x.item()


def nothing(device):
    summed(device)


LARGEST = {
    summed: "that is their sum",
    reduced_to_one: "promises its result to one rank",
    does_not_wait: "is under way until wait()",
    in_two: "one is enough",
    without_asking: "knows its own number only",
    a_tensor: ".item() makes it a number",
    smallest: "the largest of 0 to 1 was asked for",
    nothing: "say what you want back with return",
}

WRONG = {"start.largest": LARGEST}

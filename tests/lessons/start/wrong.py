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


def as_it_was(x, w):
    import torch
    import torch.distributed as dist

    y = x @ w
    if dist.get_rank() == 0:
        print("hello from rank 0")
    dist.all_reduce(y)
    return torch.relu(y)


def both_print(x, w):
    import torch
    import torch.distributed as dist

    y = x @ w
    print("hello from every rank")
    dist.all_reduce(y)
    return torch.relu(y)


def no_sum(x, w):
    import torch

    return torch.relu(x @ w)


def relu_first(x, w):
    import torch
    import torch.distributed as dist

    y = torch.relu(x @ w)
    dist.all_reduce(y)
    return y


def no_relu(x, w):
    import torch.distributed as dist

    y = x @ w
    dist.all_reduce(y)
    return y


def the_largest_part(x, w):
    import torch
    import torch.distributed as dist

    y = x @ w
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    return torch.relu(y)


def hidden(x, w):
    import torch

    return torch.compiler.disable(both_print)(x, w)


def other_operators(x, w):
    import torch
    import torch.distributed as dist

    y = x @ w
    if dist.get_rank() == 0:
        y = y + 0
    dist.all_reduce(y)
    return torch.relu(y)


def no_result(x, w):
    no_relu(x, w)


ONE_GRAPH = {
    as_it_was: "only some ranks break",
    both_print: "each breaks",
    no_sum: "all_reduce is missing",
    relu_first: "all_reduce first",
    no_relu: "relu is missing",
    the_largest_part: "relu of the sum over ranks",
    hidden: "Dynamo saw nothing of it",
    other_operators: "let no operator hang on the rank",
    no_result: "returns a tensor of the layer's shape",
}

WRONG = {"start.largest": LARGEST, "start.one_graph": ONE_GRAPH}

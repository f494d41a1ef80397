"""Plausible wrong answers to the exercises of lesson 00, each with words of the hint that is meant for it."""

from __future__ import annotations


def summed(value, device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(value, device=device)
    dist.all_reduce(x)
    return x.item()


def reduced_to_one(value, device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(value, device=device)
    dist.reduce(x, 0, op=dist.ReduceOp.MAX)
    return x.item()


def does_not_wait(value, device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    return x.item()


def its_own(value, device):
    return value


def from_the_number_of_ranks(value, device):
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device=device))
    return 4.0 * (dist.get_world_size() - 1) - 10.0


def from_the_last_rank(value, device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(value, device=device)
    dist.broadcast(x, src=dist.get_world_size() - 1)
    return x.item()


def of_two_ranks(value, device):
    import torch
    import torch.distributed as dist

    best = value
    for rank in range(2):
        x = torch.tensor(value, device=device)
        dist.broadcast(x, src=rank)
        best = max(best, x.item())
    return best


def above_zero(value, device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(max(value, 0.0), device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


def a_tensor(value, device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def smallest(value, device):
    import torch
    import torch.distributed as dist

    x = torch.tensor(value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return x.item()


def nothing(value, device):
    summed(value, device)


LARGEST = {
    summed: "that is their sum",
    reduced_to_one: "promises its result to one rank",
    does_not_wait: "is under way until wait()",
    its_own: "knows its own value only",
    from_the_number_of_ranks: "the largest of -10.5, -6.5 is -6.5",
    from_the_last_rank: "the largest of -6.5, -10.5 is -6.5",
    of_two_ranks: "on 2 ranks it is right, on three it is wrong",
    above_zero: "the largest of -10.5, -6.5 is -6.5",
    a_tensor: ".item() makes it a number",
    smallest: "the largest of -10.5, -6.5 is -6.5",
    nothing: "say what you want back with return",
}


def as_it_was(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        if dist.get_rank() == 0:
            print("hello from rank 0")
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def prints_first(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        if dist.get_rank() == 0:
            print("hello from rank 0")
        y = x @ w
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def prints_last(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        y = torch.relu(y)
        if dist.get_rank() == 0:
            print("hello from rank 0")
        return y

    return compile(layer)


def both_print(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        print("hello from rank 0")
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def no_message(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def prints_in_eager(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        if dist.get_rank() == 0 and not torch.compiler.is_compiling():
            print("hello from rank 0")
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def every_rank_prints(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return torch.relu(y)

    compiled = compile(layer)

    def call(x, w):
        print("hello from rank 0")
        return compiled(x, w)

    return call


def no_sum(compile):
    import torch

    def layer(x, w):
        return torch.relu(x @ w)

    return compile(layer)


def relu_first(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = torch.relu(x @ w)
        dist.all_reduce(y)
        return y

    return compile(layer)


def no_relu(compile):
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return y

    return compile(layer)


def the_largest_part(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        return torch.relu(y)

    return compile(layer)


def two_sums_halved(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        dist.all_reduce(y)
        return torch.relu(y / 2)

    return compile(layer)


def hidden(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(torch.compiler.disable(layer))


def its_own_compile(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return torch.relu(y)

    return torch.compile(layer, backend="eager")


def other_operators(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        if dist.get_rank() == 0:
            y = y + 0
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def empties_the_weight(compile):
    import torch
    import torch.distributed as dist

    def layer(x, w):
        y = x @ w
        w.zero_()
        dist.all_reduce(y)
        return torch.relu(y)

    compiled = compile(layer)

    def call(x, w):
        if dist.get_rank() == 0:
            print("hello from rank 0")
        return compiled(x, w)

    return call


def no_function(compile):
    return None


def no_result(compile):
    def layer(x, w):
        x @ w

    return compile(layer)


ONE_GRAPH = {
    as_it_was: "only some ranks break",
    prints_first: "only some ranks break",
    prints_last: "only some ranks break",
    both_print: "each breaks",
    no_message: "rank 0, and no other rank, prints",
    prints_in_eager: "rank 0, and no other rank, prints",
    every_rank_prints: "rank 0, and no other rank, prints",
    no_sum: "all_reduce is missing",
    relu_first: "all_reduce first",
    no_relu: "relu is missing",
    the_largest_part: "relu of the sum over ranks",
    two_sums_halved: "on three it is wrong",
    hidden: "let nothing hide the layer",
    its_own_compile: "compile with the given compile",
    other_operators: "let no operator depend on the rank",
    empties_the_weight: "relu of the sum over ranks",
    no_function: "returns a function of this rank's x and w",
    no_result: "which returns a tensor",
}

WRONG = {"start.largest": LARGEST, "start.one_graph": ONE_GRAPH}

"""Plausible wrong answers to the exercises of lesson 00, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def summed(value, device):
    x = torch.tensor(value, device=device)
    dist.all_reduce(x)
    return x.item()


def reduced_to_one(value, device):
    x = torch.tensor(value, device=device)
    dist.reduce(x, 0, op=dist.ReduceOp.MAX)
    return x.item()


def does_not_wait(value, device):
    x = torch.tensor(value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    return x.item()


def its_own(value, device):
    return value


def from_the_number_of_ranks(value, device):
    dist.all_reduce(torch.ones(1, device=device))
    return 4.0 * (dist.get_world_size() - 1) - 10.25


def from_the_last_rank(value, device):
    x = torch.tensor(value, device=device)
    dist.broadcast(x, src=dist.get_world_size() - 1)
    return x.item()


def of_two_ranks(value, device):
    best = value
    for rank in range(2):
        x = torch.tensor(value, device=device)
        dist.broadcast(x, src=rank)
        best = max(best, x.item())
    return best


def above_zero(value, device):
    x = torch.tensor(max(value, 0.0), device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


def a_tensor(value, device):
    x = torch.tensor(value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def smallest(value, device):
    x = torch.tensor(value, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return x.item()


def in_half_precision(value, device):
    x = torch.tensor(value, device=device, dtype=torch.float16)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


def gathered_on_one(value, device):
    values = [torch.zeros(1, device=device) for _ in range(dist.get_world_size())]
    dist.gather(torch.tensor([value], device=device), values if dist.get_rank() == 0 else None, dst=0)
    return max(one.item() for one in values)


def nothing(value, device):
    summed(value, device)


LARGEST = {
    summed: "that is their sum",
    reduced_to_one: "promises its result to one rank",
    does_not_wait: "is under way until wait()",
    its_own: "knows its own value only",
    from_the_number_of_ranks: "the largest of -1000.25, -996.25 is -996.25",
    from_the_last_rank: "the largest of -996.25, -1000.25 is -996.25",
    of_two_ranks: "on 2 ranks it is right, on three it is wrong",
    above_zero: "the largest of -1000.25, -996.25 is -996.25",
    a_tensor: ".item() makes it a number",
    smallest: "the largest of -1000.25, -996.25 is -996.25",
    in_half_precision: "rounded on its way",
    gathered_on_one: "promises its result to one rank",
    nothing: "say what you want back with return",
}


def message():
    """Right, of a caller that is not compiled."""
    if dist.get_rank() == 0:
        print("hello from rank 0")


def repaired(x, w):
    y = x @ w
    dist.all_reduce(y)
    return torch.relu(y)


def with_message(compiled):
    def call(x, w):
        message()
        return compiled(x, w)

    return call


def as_it_was(compile):
    def layer(x, w):
        y = x @ w
        if dist.get_rank() == 0:
            print("hello from rank 0")
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def prints_first(compile):
    def layer(x, w):
        if dist.get_rank() == 0:
            print("hello from rank 0")
        y = x @ w
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def prints_last(compile):
    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        y = torch.relu(y)
        if dist.get_rank() == 0:
            print("hello from rank 0")
        return y

    return compile(layer)


def both_print(compile):
    def layer(x, w):
        y = x @ w
        print("hello from rank 0")
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def no_message(compile):
    return compile(repaired)


def prints_in_eager(compile):
    def layer(x, w):
        y = x @ w
        if dist.get_rank() == 0 and not torch.compiler.is_compiling():
            print("hello from rank 0")
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def every_rank_prints(compile):
    compiled = compile(repaired)

    def call(x, w):
        print("hello from rank 0")
        return compiled(x, w)

    return call


def no_sum(compile):
    def layer(x, w):
        return torch.relu(x @ w)

    return compile(layer)


def relu_first(compile):
    def layer(x, w):
        y = torch.relu(x @ w)
        dist.all_reduce(y)
        return y

    return compile(layer)


def no_relu(compile):
    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return y

    return compile(layer)


def the_largest_part(compile):
    def layer(x, w):
        y = x @ w
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        return torch.relu(y)

    return compile(layer)


def two_sums_halved(compile):
    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        dist.all_reduce(y)
        return torch.relu(y / 2)

    return with_message(compile(layer))


def hidden(compile):
    out_of_sight = torch.compiler.disable(repaired)
    return with_message(compile(lambda x, w: out_of_sight(x, w)))


def its_own_compile(compile):
    return torch.compile(repaired, backend="eager")


def only_the_matmul(compile):
    product = compile(lambda x, w: x @ w)

    def layer(x, w):
        y = product(x, w)
        dist.all_reduce(y)
        return torch.relu(y)

    return with_message(layer)


def only_relu(compile):
    relu = compile(torch.relu)

    def layer(x, w):
        y = x @ w
        dist.all_reduce(y)
        return relu(y)

    return with_message(layer)


def something_else(compile):
    shift = compile(lambda x, w: (x + 1, w + 1))

    def layer(x, w):
        shift(x, w)
        return repaired(x, w)

    return with_message(layer)


def other_operators(compile):
    def layer(x, w):
        y = x @ w
        if dist.get_rank() == 0:
            y = y + 0
        dist.all_reduce(y)
        return torch.relu(y)

    return compile(layer)


def empties_the_weight(compile):
    def layer(x, w):
        y = x @ w
        w.zero_()
        dist.all_reduce(y)
        return torch.relu(y)

    return with_message(compile(layer))


def keeps_the_first_result(compile):
    compiled, kept = compile(repaired), []

    def call(x, w):
        kept.append(compiled(x, w))
        message()
        return kept[0]

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
    hidden: "compile with the given compile",
    its_own_compile: "compile with the given compile",
    only_the_matmul: "only a part of the layer",
    only_relu: "only a part of the layer",
    something_else: "only a part of the layer",
    other_operators: "let no operator depend on the rank",
    empties_the_weight: "relu of the sum over ranks",
    keeps_the_first_result: "relu of the sum over ranks",
    no_function: "returns a function of this rank's x and w",
    no_result: "returns a function of this rank's x and w",
}

WRONG = {"start.largest": LARGEST, "start.one_graph": ONE_GRAPH}

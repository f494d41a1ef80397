"""Plausible wrong answers to the exercises of lesson 03, each with words of the hint that it has to get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def returns_nothing(x):
    x.add(1)


def without_the_collective(x):
    import torch

    y = x * 2 + 1
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def adds_up_twice(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    funcol.wait_tensor(funcol.all_reduce(x, "sum", dist.group.WORLD))
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_prints(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = x * 2
    print(end="")
    y = funcol.all_reduce(y + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_hidden(x):
    import torch
    import torch.distributed as dist

    @torch.compiler.disable
    def hidden_sum(y):
        dist.all_reduce(y)
        return y

    y = hidden_sum(x * 2 + 1)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_branches(x):
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = y.sqrt() if y.sum() > 0 else y.abs()
    return y / ((y * (y > 0)).sum() / (y > 0).sum())


def still_leaves_the_graph(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / y[y > 0].mean()


def waits_somewhere(gm, example_inputs):
    names = [str(node.target) for node in gm.graph.nodes]
    reduces, waits = (sum(word in name for name in names) for word in ("all_", "wait_tensor"))
    if reduces and not waits:
        raise RuntimeError("no wait in this graph")
    return gm.forward


def some_user_waits(gm, example_inputs):
    for node in gm.graph.nodes:
        if "_c10d_functional.all_" in str(node.target):
            if not any("wait_tensor" in str(user.target) for user in node.users):
                raise RuntimeError(f"nobody waits for {node}")
    return gm.forward


def only_all_reduce(gm, example_inputs):
    for node in gm.graph.nodes:
        if "all_reduce" in str(node.target):
            if not all("wait_tensor" in str(user.target) for user in node.users):
                raise RuntimeError(f"{node} is used before its wait")
    return gm.forward


def output_is_no_user(gm, example_inputs):
    for node in gm.graph.nodes:
        if "_c10d_functional.all_" in str(node.target):
            for user in node.users:
                if user.op != "output" and "wait_tensor" not in str(user.target):
                    raise RuntimeError(f"{user} uses {node} before its wait")
    return gm.forward


def refuses_every_collective(gm, example_inputs):
    if any("_c10d_functional" in str(node.target) for node in gm.graph.nodes):
        raise RuntimeError("a collective")
    return gm.forward


def returns_the_graph(gm, example_inputs):
    return gm.graph


def returns_something_else(gm, example_inputs):
    return lambda *inputs: (inputs[0] + 1,)


def _gathered(mine):
    import torch.distributed as dist

    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, mine)
    return lists


def compares_operations(gm, example_inputs):
    lists = _gathered([node.name for node in gm.graph.nodes])
    if lists[0] != lists[-1]:
        raise RuntimeError(f"graphs differ: {lists}")
    return gm.forward


def says_only_that_they_differ(gm, example_inputs):
    lists = _gathered([str(node.format_node()) for node in gm.graph.nodes])
    if lists[0] != lists[-1]:
        raise RuntimeError("the graphs differ")
    return gm.forward


def refuses_on_one_rank(gm, example_inputs):
    import torch.distributed as dist

    lists = _gathered([str(node.format_node()) for node in gm.graph.nodes])
    if lists[0] != lists[-1] and dist.get_rank() == 1:
        raise RuntimeError(str(lists))
    return gm.forward


def compares_the_shared_part(gm, example_inputs):
    mine = [(str(node.target), str(node.args[1:])) for node in gm.graph.nodes][:3]
    lists = _gathered([*mine, *[str(n.args) for n in gm.graph.nodes if n.name == "mul"]])
    if lists[0] != lists[-1]:
        raise RuntimeError(f"mul: {lists}")
    return gm.forward


def compares_by_address(gm, example_inputs):
    import os

    lists = _gathered([(os.getpid(), id(node)) for node in gm.graph.nodes])
    if lists[0] != lists[-1]:
        raise RuntimeError("graphs differ")
    return gm.forward


ONE: dict[Callable[..., Any], str] = {
    returns_nothing: "return the tensor",
    without_the_collective: "not those of `tangled`",
    adds_up_twice: "add up once",
    still_prints: "take it out",
    still_hidden: "hidden from the compiler",
    still_branches: "torch.where",
    still_leaves_the_graph: "count with a mask",
}
WAITS: dict[Callable[..., Any], str] = {
    returns_the_graph: "return gm.forward, or raise",
    returns_something_else: "called in the graph's place",
    refuses_every_collective: "refuse only what is wrong",
    waits_somewhere: "each collective's own users",
    some_user_waits: "every user has to be a wait",
    only_all_reduce: "not the only collective",
    output_is_no_user: "the output is a user",
}
DIFFER: dict[Callable[..., Any], str] = {
    compares_by_address: "refuse only what is wrong",
    compares_operations: "compare the arguments",
    compares_the_shared_part: "compare the whole lists",
    says_only_that_they_differ: "name the first node that differs",
    refuses_on_one_rank: "raise on every rank",
}


WRONG = {"reading.one": ONE, "reading.waits": WAITS, "reading.differ": DIFFER}

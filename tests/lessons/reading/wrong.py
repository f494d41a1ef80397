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
    return y / (torch.where(y > 0, y, 0).sum() / (y > 0).sum())


def adds_up_twice(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    funcol.wait_tensor(funcol.all_reduce(x, "sum", dist.group.WORLD))
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / (torch.where(y > 0, y, 0).sum() / (y > 0).sum())


def still_prints(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = x * 2
    print(end="")
    y = funcol.all_reduce(y + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / (torch.where(y > 0, y, 0).sum() / (y > 0).sum())


def still_hidden(x):
    import torch
    import torch.distributed as dist

    @torch.compiler.disable
    def hidden_sum(y):
        dist.all_reduce(y)
        return y

    y = hidden_sum(x * 2 + 1)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / (torch.where(y > 0, y, 0).sum() / (y > 0).sum())


def still_branches(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = y.sqrt() if y.sum() > 0 else y.abs()
    return y / (torch.where(y > 0, y, 0).sum() / (y > 0).sum())


def still_leaves_the_graph(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / y[y > 0].mean()


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
    shapes = [f"{x.shape} {x.dtype}" for x in example_inputs if hasattr(x, "shape")]
    lists = _gathered([str(node.format_node()) for node in gm.graph.nodes] + shapes)
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


def names_every_node(gm, example_inputs):
    shapes = [f"{x.shape} {x.dtype}" for x in example_inputs if hasattr(x, "shape")]
    lists = _gathered([str(node.format_node()) for node in gm.graph.nodes] + shapes)
    if lists[0] != lists[-1]:
        raise RuntimeError(str(lists))
    return gm.forward


def names_fixed_nodes(gm, example_inputs):
    lists = _gathered(
        str(gm.graph) + str([(x.shape, x.dtype) for x in example_inputs if hasattr(x, "shape")])
    )
    if lists[0] != lists[-1]:
        raise RuntimeError("graphs differ: sin tanh mul")
    return gm.forward


def leaves_out_the_shapes(gm, example_inputs):
    lists = _gathered([str(node.format_node()) for node in gm.graph.nodes])
    for nodes in zip(*lists, strict=False):
        if len(set(nodes)) > 1:
            raise RuntimeError(str(nodes))
    return gm.forward


def _described(gm):
    values = [node.meta.get("example_value") for node in gm.graph.nodes]
    kinds = [(getattr(value, "shape", ""), str(getattr(value, "dtype", ""))) for value in values]
    return [(str(node.format_node()), *kind) for node, kind in zip(gm.graph.nodes, kinds, strict=True)]


def leaves_out_the_dtypes(gm, example_inputs):
    lists = _gathered([node[:2] for node in _described(gm)])
    for nodes in zip(*lists, strict=False):
        if len(set(nodes)) > 1:
            raise RuntimeError(str(nodes))
    return gm.forward


def compares_with_a_neighbour(gm, example_inputs):
    import torch.distributed as dist

    lists, rank = _gathered(_described(gm)), dist.get_rank()
    for nodes in zip(lists[rank], lists[rank - 1], strict=False):
        if len(set(nodes)) > 1:
            raise RuntimeError(str(nodes))
    return gm.forward


def compares_the_first_with_the_last(gm, example_inputs):
    lists = _gathered(_described(gm))
    for nodes in zip(lists[0], lists[-1], strict=False):
        if len(set(nodes)) > 1:
            raise RuntimeError(str(nodes))
    return gm.forward


def compares_by_address(gm, example_inputs):
    import os

    lists = _gathered([(os.getpid(), id(node)) for node in gm.graph.nodes])
    if lists[0] != lists[-1]:
        raise RuntimeError("graphs differ")
    return gm.forward


def _one(choose=None, last=lambda y: y):
    """Right but for what chooses the numbers above 0, and what happens last."""

    def rewritten(x):
        import torch
        import torch.distributed as dist
        from torch.distributed import _functional_collectives as funcol

        y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
        y = choose(y) if choose else torch.where(y.sum() > 0, y.sqrt(), y.abs())
        positive = y > 0
        return last(y / (torch.where(positive, y, 0).sum() / positive.sum()))

    return rewritten


def nan_times_zero(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    positive = y > 0
    return y / ((y * positive).sum() / positive.sum())


def all_nan(x):
    return _one(last=lambda y: y * float("nan"))(x)


def another_shape(x):
    return _one(last=lambda y: y[None])(x)


def always_a_root(x):
    return _one(choose=lambda y: y.sqrt())(x)


def _plain_mean(choose):
    """Without a mask: the mean of all numbers."""

    def rewritten(x):
        import torch.distributed as dist
        from torch.distributed import _functional_collectives as funcol

        y = choose(funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD))
        return y / y.mean()

    return rewritten


def drops_the_branch_and_the_mask(x):
    return _plain_mean(lambda y: y.sqrt())(x)


def mean_of_all(x):
    import torch

    return _plain_mean(lambda y: torch.where(y.sum() > 0, y.sqrt(), y.abs()))(x)


def a_root_for_each_number(x):
    import torch

    return _one(choose=lambda y: torch.where(y > 0, y.sqrt(), y.abs()))(x)


ONE: dict[Callable[..., Any], str] = {
    returns_nothing: "return the tensor",
    without_the_collective: "not those of `tangled`",
    adds_up_twice: "add up once",
    still_prints: "take it out",
    still_hidden: "hidden from the compiler",
    still_branches: "choose between two tensors",
    still_leaves_the_graph: "count with a mask",
    nan_times_zero: "NaN times 0 is NaN",
    all_nan: "not those of `tangled`",
    another_shape: "the shape of the result",
    always_a_root: "no square root",
    drops_the_branch_and_the_mask: "no square root",
    mean_of_all: "NaN times 0 is NaN",
    a_root_for_each_number: "chooses once for all numbers",
}
DIFFER: dict[Callable[..., Any], str] = {
    compares_by_address: "refuse only what is wrong",
    compares_operations: "compare the arguments",
    compares_the_shared_part: "compare the whole lists",
    says_only_that_they_differ: "name the first node that differs",
    names_every_node: "leave them out",
    names_fixed_nodes: "leave them out",
    leaves_out_the_shapes: "compare the shapes too",
    leaves_out_the_dtypes: "compare each dtype too",
    compares_with_a_neighbour: "take all lists into account",
    compares_the_first_with_the_last: "take all lists into account",
    refuses_on_one_rank: "raise on every rank",
}


def _finds(rank, line, fix=""):
    def finding():
        return {"rank": rank, "line": line, "fix": fix}

    return finding


def says_it_in_words():
    return "rank 2"


CULPRIT: dict[Callable[..., Any], str] = {
    says_it_in_words: "two whole numbers, and Python",
    _finds(0, 20, "pass"): "all four ranks break there",
    _finds(1, 23, "pass"): "collect the breaks by rank",
    _finds("2", 23, "pass"): "two whole numbers, and Python",
    _finds(2, 33, "pass"): "the number stands after",
    _finds(2, 23, "pass"): "cut to 50 before they are added up",
    _finds(2, 23, "if y.max() > 50 or y.min() < -50:\n    y = y.clamp(-50, 50)"): "Python still asks",
}


WRONG = {
    "reading.culprit": CULPRIT,
    "reading.one": ONE,
    "reading.differ": DIFFER,
}

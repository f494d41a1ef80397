"""Right answers to the exercises of lesson 03 in other words than those of the solutions."""

from __future__ import annotations


def nanmean(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y / torch.where(y > 0, y, float("nan")).nanmean()


def plain_collective(x):
    import torch
    import torch.distributed as dist

    y = x * 2 + 1
    dist.all_reduce(y)
    y = torch.where(y.sum() > 0, y.sqrt(), y.abs())
    return y * (y > 0).sum() / y.nan_to_num().sum()


def chooses_a_branch(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    y = funcol.all_reduce(x * 2 + 1, "sum", dist.group.WORLD)
    y = torch.cond(y.sum() > 0, lambda y: y.sqrt(), lambda y: y.abs(), (y,))
    positive = y > 0
    return y / (torch.where(positive, y, 0).sum() / positive.sum())


def counts_to_the_first(gm, example_inputs):
    import torch.distributed as dist

    shapes = [getattr(node.meta.get("example_value"), "shape", None) for node in gm.graph.nodes]
    mine = [f"{node.format_node()} {shape}" for node, shape in zip(gm.graph.nodes, shapes, strict=True)]
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, mine)
    i = 0
    while i < max(len(nodes) for nodes in lists):
        texts = [nodes[i] if i < len(nodes) else "nothing" for nodes in lists]
        if any(text != texts[0] for text in texts):
            raise ValueError(f"node {i}: {texts}")
        i += 1
    return gm


def maximum_and_minimum():
    return {"rank": 2, "line": 23, "fix": "y = y.minimum(y.new_tensor(50)).maximum(y.new_tensor(-50))"}


def chooses_between_tensors():
    return {"rank": 2, "line": 23, "fix": "y = torch.where(y.abs().max() > 50, y.clamp(-50, 50), y)"}


RIGHT = {
    "reading.culprit": (maximum_and_minimum, chooses_between_tensors),
    "reading.differ": (counts_to_the_first,),
    "reading.one": (nanmean, plain_collective, chooses_a_branch),
}

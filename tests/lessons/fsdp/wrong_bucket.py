"""Plausible wrong answers to `fsdp.bucket`, each with words of the hint that is meant for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def levels(graph, by_level=True):
    """How many all-reduces lie on the way to each node."""
    level = {}
    for node in graph.nodes:
        above = max([level[i] for i in node.all_input_nodes], default=0)
        level[node] = above + ("all_reduce" in str(node.target)) if by_level else 0
    return level


def bucket(gm, key, by_level=True, reorder=True, reshape=True, erase=True, wait_last=False):
    """Right for a key of operation, group and dtype; the options are what one may forget."""
    from collections import defaultdict

    import torch

    graph, op = gm.graph, torch.ops._c10d_functional
    level, buckets = levels(graph, by_level), defaultdict(list)
    for node in graph.nodes:
        if "all_reduce" in str(node.target):
            buckets[level[node], key(node)].append(node)
    if reorder:
        for node in sorted(list(graph.nodes)[:-1], key=level.get):
            graph.output_node().prepend(node)
    for nodes in buckets.values():
        with graph.inserting_before(nodes[0]):
            parts = together(graph, op, nodes, reshape, wait_last)
        for node, part in zip(nodes, parts, strict=True):
            for wait in [node] if wait_last else list(node.users):
                wait.replace_all_uses_with(part)
                if erase and not wait_last:
                    graph.erase_node(wait)
            if erase:
                graph.erase_node(node)
    gm.recompile()
    return gm.forward


def together(graph, op, nodes, reshape=True, wait_last=False):
    import torch
    from torch import fx

    tracer = fx.proxy.GraphAppendingTracer(graph)
    shapes = [node.meta["example_value"].shape for node in nodes]
    flat = torch.cat([fx.Proxy(node.args[0], tracer).reshape(-1) for node in nodes])
    whole = op.all_reduce(flat, *nodes[0].args[1:])
    whole = whole if wait_last else op.wait_tensor(whole)
    parts = whole.split([shape.numel() for shape in shapes])
    return [(parts[i].reshape(shape) if reshape else parts[i]).node for i, shape in enumerate(shapes)]


def all_that_agree(node):
    return (*node.args[1:], node.meta["example_value"].dtype)


def merges_nothing(gm, example_inputs):
    return gm.forward


def without_shapes(gm, example_inputs):
    return bucket(gm, all_that_agree, reshape=False)


def keeps_the_old_ones(gm, example_inputs):
    return bucket(gm, all_that_agree, erase=False)


def splits_before_the_wait(gm, example_inputs):
    return bucket(gm, all_that_agree, wait_last=True)


def merges_a_chain(gm, example_inputs):
    return bucket(gm, all_that_agree, by_level=False)


def in_the_old_order(gm, example_inputs):
    return bucket(gm, all_that_agree, reorder=False)


def whatever_operation(gm, example_inputs):
    return bucket(gm, lambda node: all_that_agree(node)[1:])


def whatever_group(gm, example_inputs):
    return bucket(gm, lambda node: (node.args[1], all_that_agree(node)[2]))


def whatever_type(gm, example_inputs):
    return bucket(gm, lambda node: node.args[1:])


def independent_in_pairs(gm, example_inputs):
    """Merges what does not depend on each other in the first graph, and sorts afterwards."""
    import torch

    graph, above, buckets = gm.graph, {}, []
    for node in graph.nodes:
        above[node] = set().union(*({i, *above[i]} for i in node.all_input_nodes))
        if "all_reduce" in str(node.target):
            for nodes in buckets:
                if all_that_agree(nodes[0]) == all_that_agree(node) and not above[node] & set(nodes):
                    nodes.append(node)
                    break
            else:
                buckets.append([node])
    for nodes in buckets:
        with graph.inserting_before(graph.output_node()):
            parts = together(graph, torch.ops._c10d_functional, nodes)
        for node, part in zip(nodes, parts, strict=True):
            for wait in list(node.users):
                wait.replace_all_uses_with(part)
                graph.erase_node(wait)
            graph.erase_node(node)
    placed = {node for node in graph.nodes if node.op == "placeholder"}

    def place(node):
        if node not in placed:
            placed.add(node)
            for i in node.all_input_nodes:
                place(i)
            graph.output_node().prepend(node)

    for result in graph.output_node().all_input_nodes:
        place(result)
    gm.recompile()
    return gm.forward


def by_levels(gm, example_inputs):
    return bucket(gm, all_that_agree)


def in_pairs(gm, example_inputs):
    turns = iter(range(1000))
    return bucket(gm, lambda node: (*all_that_agree(node), next(turns) // 2))


def hides_it_in_a_function(gm, example_inputs):
    import operator

    import torch

    op = torch.ops._c10d_functional

    def merged(how, group, *tensors):
        flat = torch.cat([t.reshape(-1) for t in tensors])
        parts = op.wait_tensor(op.all_reduce(flat, how, group)).split([t.numel() for t in tensors])
        return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]

    nodes = [node for node in gm.graph.nodes if "all_reduce" in str(node.target)]
    with gm.graph.inserting_before(nodes[0]):
        whole = gm.graph.call_function(merged, (*nodes[0].args[1:], *(node.args[0] for node in nodes)))
        parts = [gm.graph.call_function(operator.getitem, (whole, i)) for i, _ in enumerate(nodes)]
    for node, part in zip(nodes, parts, strict=True):
        wait = next(iter(node.users))
        wait.replace_all_uses_with(part)
        gm.graph.erase_node(wait)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm.forward


def forgets_to_return(gm, example_inputs):
    bucket(gm, all_that_agree)


BUCKET: dict[Callable[..., Any], str] = {
    merges_nothing: "what has to agree",
    without_shapes: "split, then reshape",
    keeps_the_old_ones: "erase them, with their waits",
    splits_before_the_wait: "wait once for the whole",
    merges_a_chain: "can never be one",
    in_the_old_order: "into another order first",
    whatever_operation: "keep sums and maxima apart",
    whatever_group: "keep the groups apart",
    whatever_type: "keep the dtypes apart",
    independent_in_pairs: "before you merge, ask whether one needs the other",
    by_levels: "not for how many collectives lie before each",
    in_pairs: "more than pairs",
    hides_it_in_a_function: "make its operators nodes",
    forgets_to_return: "return gm.forward",
}

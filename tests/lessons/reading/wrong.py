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


def _unwaited(gm, names, kinds):
    for node in gm.graph.nodes:
        if names in str(node.target) and "wait_tensor" not in str(node.target):
            for user in node.users:
                if user.op in kinds and "wait_tensor" not in str(user.target):
                    raise RuntimeError(f"{user} uses {node} before its wait")
    return gm.forward


def methods_are_no_users(gm, example_inputs):
    return _unwaited(gm, "_c10d_functional", ("call_function", "output"))


def only_names_with_all(gm, example_inputs):
    return _unwaited(gm, "_c10d_functional.all_", ("call_function", "call_method", "output"))


def the_wait_comes_next(gm, example_inputs):
    for node in gm.graph.nodes:
        if "_c10d_functional" in str(node.target) and "wait_tensor" not in str(node.target):
            if "wait_tensor" not in str(node.next.target):
                raise RuntimeError(f"{node.next} comes before the wait for {node}")
    return _unwaited(gm, "_c10d_functional", ("call_function", "call_method", "output"))


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


ONE: dict[Callable[..., Any], str] = {
    returns_nothing: "return the tensor",
    without_the_collective: "not those of `tangled`",
    adds_up_twice: "add up once",
    still_prints: "take it out",
    still_hidden: "hidden from the compiler",
    still_branches: "choose between two tensors",
    still_leaves_the_graph: "count with a mask",
    nan_times_zero: "NaN times 0 is NaN",
    all_nan: "NaN times 0 is NaN",
    another_shape: "the shape of the result",
    always_a_root: "no square root",
}
WAITS: dict[Callable[..., Any], str] = {
    returns_the_graph: "return gm.forward, or raise",
    returns_something_else: "called in the graph's place",
    refuses_every_collective: "refuse only what is wrong",
    waits_somewhere: "each collective's own users",
    some_user_waits: "every user has to be a wait",
    only_all_reduce: "not the only collective",
    output_is_no_user: "the output is a user",
    methods_are_no_users: "a method of the tensor uses it",
    only_names_with_all: "begins with no all_",
    the_wait_comes_next: "other work between a collective and its wait",
}
DIFFER: dict[Callable[..., Any], str] = {
    compares_by_address: "refuse only what is wrong",
    compares_operations: "compare the arguments",
    compares_the_shared_part: "compare the whole lists",
    says_only_that_they_differ: "name the first node that differs",
    refuses_on_one_rank: "raise on every rank",
}


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


WRONG = {
    "reading.one": ONE,
    "reading.waits": WAITS,
    "reading.differ": DIFFER,
    "reading.bucket": BUCKET,
}

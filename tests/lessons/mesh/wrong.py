"""Plausible wrong answers to the exercises of lesson 11, each with words of the hint that is meant for it."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist


def _backend(refuses):
    """A fence that refuses a graph by what this function says of its nodes."""

    def my_fence(group):
        def backend(graph, inputs):
            if refuses(group, list(graph.graph.nodes)):
                raise RuntimeError("another group")
            return graph.forward

        return backend

    return my_fence


def _args(node):
    return [a for a in node.args if isinstance(a, str)] if "_c10d_functional" in str(node.target) else []


def _names(node):
    return [node.kwargs["group_name"]] if "group_name" in node.kwargs else _args(node)


def _deep(graph):
    return [node for part in graph.modules() if hasattr(part, "graph") for node in part.graph.nodes]


refuses_nothing = _backend(lambda group, nodes: False)
refuses_all = _backend(lambda group, nodes: any(_names(node) for node in nodes))
top_only = _backend(lambda group, nodes: any(n[-1] != group.group_name for n in map(_names, nodes) if n))
only_reduces = _backend(
    lambda group, nodes: any(
        _names(node)[-1] != group.group_name for node in nodes if "all_reduce" in str(node.target)
    )
)


four_names = _backend(
    lambda group, nodes: any(
        _names(node)[-1] != group.group_name
        for node in nodes
        if re.search("all_reduce|all_gather|reduce_scatter|broadcast", str(node.target)) and _names(node)
    )
)


def _numbers_only(group):
    """A fence that takes a group's name for a number."""

    def backend(graph, inputs):
        for node in _deep(graph):
            if any(name.isdigit() and name != group.group_name for name in _names(node)):
                raise RuntimeError("another group")
        return graph.forward

    return backend


def _the_first(group):
    def backend(graph, inputs):
        names = [names for names in map(_names, _deep(graph)) if names]
        if names and names[0][-1] != group.group_name:
            raise RuntimeError("another group")
        return graph.forward

    return backend


def by_size(group):
    sizes = {one.group_name: one.size() for one in dist.distributed_c10d._world.pg_names}

    def backend(graph, inputs):
        if any(sizes[_names(node)[-1]] != group.size() for node in _deep(graph) if _names(node)):
            raise RuntimeError("another group")
        return graph.forward

    return backend


def after_it_ran(group):
    def backend(graph, inputs):
        def run(*inputs):
            y = graph(*inputs)
            if any(_names(node)[-1] != group.group_name for node in _deep(graph) if _names(node)):
                raise RuntimeError("another group")
            return y

        return run

    return backend


def _only_args(group):
    def backend(graph, inputs):
        if any(_args(node)[-1] != group.group_name for node in _deep(graph) if _args(node)):
            raise RuntimeError("another group")
        return graph.forward

    return backend


def _a_part_of_the_name(group):
    def backend(graph, inputs):
        for node in _deep(graph):
            if (
                "_c10d_functional" in str(node.target)
                and _names(node)
                and group.group_name not in _names(node)[-1]
            ):
                raise RuntimeError("another group")
        return graph.forward

    return backend


def returns_the_graph_checked(group):
    return None


def _changes_numbers(group):
    def backend(graph, inputs):
        for node in _deep(graph):
            if _names(node) and _names(node)[-1] != group.group_name:
                raise RuntimeError("another group")
        return lambda *args: tuple(torch.zeros_like(x) for x in graph.forward(*args))

    return backend


def _jobs(**changes):
    right = {
        "A": ([3], "another group in the graph", 'mesh["tp"].get_group()'),
        "B": ([1, 2], "groups in another order", "one order on all ranks"),
        "C": ([1, 2], "input by the wrong number", 'mesh["dp"].get_local_rank()'),
        "D": ([0, 1, 2, 3], "another size in the graph", 'mesh["dp"].size()'),
    }
    return right | changes


def the_rank_that_died():
    return _jobs(A=([1], "another group in the graph", 'mesh["tp"].get_group()'))


def waits_for_rank_2():
    return _jobs(B=([2], "a rank stayed away", "a longer timeout"))


def sampler_is_right():
    return _jobs(C=([0, 1, 2, 3], "another group in the graph", 'mesh["dp"].get_local_rank()'))


def half_of_the_loss():
    return _jobs(D=([0, 1, 2, 3], "input by the wrong number", 'mesh["dp"].size()'))


def waits_longer():
    return _jobs(B=([1, 2], "groups in another order", "a longer timeout"))


def an_own_word():
    return _jobs(A=([3], "wrong group", 'mesh["tp"].get_group()'))


WRONG = {
    "mesh.fence": {
        refuses_nothing: "compare it with `group.group_name`",
        refuses_all: "it is the group's own",
        only_reduces: "other collectives have a group",
        four_names: "other collectives have a group",
        _numbers_only: "a name need not be a number",
        by_size: "the same members",
        after_it_ran: "refuse in the backend",
        _only_args: "by the names of the operator's schema",
        top_only: "go through `graph.modules()`",
        _the_first: "look at every node",
        _a_part_of_the_name: "is a part of",
        returns_the_graph_checked: "my_fence(group) returns a backend",
        _changes_numbers: "it is the group's own",
    },
    "mesh.jobs": {
        the_rank_that_died: "on which ranks is it so",
        waits_for_rank_2: "which call does each rank wait in",
        sampler_is_right: "which ranks have to have the same input",
        half_of_the_loss: "compare each number in the graph",
        waits_longer: "a change that does not touch it",
        an_own_word: "one of 'another group in the graph'",
    },
}

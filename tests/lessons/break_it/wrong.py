"""Plausible wrong answers to the exercises of lesson 15, each with words of the hint that is meant for it."""

from __future__ import annotations

import pickle
import warnings

import torch
import torch.distributed as dist


def collectives(graph, nested=True):
    for module in graph.modules() if nested else [graph]:
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            name = str(node.target)
            if name.startswith("_c10d_functional") and "wait_tensor" not in name:
                yield name, node.args[-1]


def refuses_all(graph, inputs, allowed):
    for name, group in collectives(graph):
        raise RuntimeError(f"{name} of group {group}")
    return graph


def only_warns(graph, inputs, allowed):
    for name, group in collectives(graph):
        if group not in allowed:
            warnings.warn(f"{name} of group {group}", stacklevel=2)
    return graph


def only_all_reduce(graph, inputs, allowed):
    for name, group in collectives(graph):
        if "all_reduce" in name and group not in allowed:
            raise RuntimeError(f"{name} of group {group}")
    return graph


def third_argument(graph, inputs, allowed):
    for module in graph.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            name = str(node.target)
            if (
                name.startswith("_c10d_functional")
                and "wait_tensor" not in name
                and node.args[2] not in allowed
            ):
                if isinstance(node.args[2], str):
                    raise RuntimeError(f"{name} of group {node.args[2]}")
    return graph


def two_operators(graph, inputs, allowed):
    for name, group in collectives(graph):
        if ("all_reduce" in name or "all_gather" in name) and group not in allowed:
            raise RuntimeError(f"{name} of group {group}")
    return graph


def the_first_one(graph, inputs, allowed):
    for name, group in [*collectives(graph)][:1]:
        if group not in allowed:
            raise RuntimeError(f"{name} of group {group}")
    return graph


def at_the_top(graph, inputs, allowed):
    for name, group in collectives(graph, nested=False):
        if group not in allowed:
            raise RuntimeError(f"{name} of group {group}")
    return graph


def one_namespace(graph, inputs, allowed):
    for name, group in collectives(graph):
        if name.startswith("_c10d_functional.") and group not in allowed:
            raise RuntimeError(f"{name} of group {group}")
    return graph


def says_nothing_of_it(graph, inputs, allowed):
    if any(group not in allowed for _, group in collectives(graph)):
        raise RuntimeError("wrong group")
    return graph


def put(body):
    dist.broadcast(torch.tensor([len(body)]), 0)
    dist.broadcast(torch.frombuffer(bytearray(body), dtype=torch.uint8), 0)


def says_nothing(message):
    try:
        body = pickle.dumps(message)
    except TypeError:
        return
    put(body)


def catches_type_errors(message):
    try:
        body = pickle.dumps(message)
    except TypeError:
        body = b""
    dist.broadcast(torch.tensor([len(body)]), 0)
    if body:
        dist.broadcast(torch.frombuffer(bytearray(body), dtype=torch.uint8), 0)


def half_a_size(message):
    try:
        body = pickle.dumps(message)
    except Exception:
        body = b""
    dist.broadcast(torch.tensor([len(body)], dtype=torch.int32), 0)
    if body:
        dist.broadcast(torch.frombuffer(bytearray(body), dtype=torch.uint8), 0)


def sends_what_it_can(message):
    put(pickle.dumps({name: value for name, value in message.items() if name != "lock"}))


def never_sends(message):
    dist.broadcast(torch.tensor([0]), 0)


BACKENDS = {
    refuses_all: "of an allowed group has to pass",
    only_warns: "what only warns goes on",
    only_all_reduce: "not only all_reduce",
    one_namespace: "a namespace of their own",
    third_argument: "a reduce-scatter counts",
    two_operators: "a reduce-scatter counts",
    the_first_one: "a graph can hold several collectives",
    at_the_top: "a graph can hold graphs",
    says_nothing_of_it: "which operator it is",
}
SENDERS = {
    says_nothing: "pickle before you broadcast",
    sends_what_it_can: "not sent in part",
    never_sends: "is sent as it is",
    catches_type_errors: "can raise any exception",
    half_a_size: "as int64",
}


WRONG = {"break_it.backend": BACKENDS, "break_it.send": SENDERS}

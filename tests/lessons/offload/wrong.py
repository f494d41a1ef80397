"""Plausible wrong answers to the exercise of lesson 07b, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch


def _products(graph):
    return [n for n in graph.nodes if n.target is torch.ops.aten.mm.default]


def _all(graph, target):
    return [n for n in graph.nodes if n.target is target]


def leaves_everything(forward, backward):
    pass


def to_both_ends(forward, backward):
    for wait in _all(forward, torch.ops.ao.wait_tensor.default):
        next(n for n in forward.nodes if n.op == "output").prepend(wait)
    first = _products(backward)[0]
    for reload in _all(backward, torch.ops.ao.reload.default):
        if reload is not first.prev:
            first.prepend(reload)


def forward_only(forward, backward):
    order = list(forward.nodes)
    for wait in _all(forward, torch.ops.ao.wait_tensor.default):
        after = [n for n in _products(forward) if order.index(n) > order.index(wait)]
        if after:
            after[:3][-1].append(wait)


def waits_after_the_use(forward, backward):
    for wait in _all(backward, torch.ops.ao.wait_tensor.default):
        _products(backward)[-1].append(wait)


def takes_the_reload(forward, backward):
    """The kernels take what is still being copied, and the wait comes last."""
    for wait in _all(backward, torch.ops.ao.wait_tensor.default):
        wait.replace_all_uses_with(wait.args[0], delete_user_cb=lambda user, wait=wait: user is not wait)
        _products(backward)[-1].append(wait)


def smaller_on_paper(forward, backward):
    for copy in _all(forward, torch.ops.ao.offload.default):
        copy.meta["val"] = copy.meta["val"][:1]


def without_waits(forward, backward):
    for wait in _all(forward, torch.ops.ao.wait_tensor.default):
        wait.replace_all_uses_with(wait.args[0])
        forward.erase_node(wait)


SCHEDULE = {
    takes_the_reload: "leave all of them, their inputs and their metadata",
    smaller_on_paper: "leave all of them, their inputs and their metadata",
    without_waits: "leave all of them, their inputs and their metadata",
    leaves_everything: "put matmuls between a copy and its wait",
    forward_only: "start a reload some matmuls before its wait",
    to_both_ends: "wait a few matmuls after the copy",
    waits_after_the_use: "a wait stays before the users",
}
WRONG = {"offload.schedule": SCHEDULE}

"""Plausible wrong answers to the exercises of lesson 07, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch


def records_behind_the_change(x, side):
    x.mul_(2)
    made = torch.Event()
    made.record()
    with side:
        made.wait()
        return x + 1


def waits_before_the_write(x, side):
    doubled = x * 2
    made = torch.Event()
    made.record()
    with side:
        made.wait()
        y = doubled + 1
    torch.accelerator.current_stream().wait_stream(side)
    x.copy_(doubled)
    return y


def leaves_x(x, side):
    doubled = x * 2
    made = torch.Event()
    made.record()
    with side:
        made.wait()
        return doubled + 1


def writes_what_was_there(x, side):
    y = leaves_x(x, side)
    x.copy_(x * 1)
    return y


def writes_too_much(x, side):
    y = leaves_x(x, side)
    x.copy_(x * 3)
    return y


def needs_no_event(x, side):
    x.mul_(2)
    return x + 1


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
        behind = [n for n in _products(forward) if order.index(n) > order.index(wait)]
        if behind:
            behind[:3][-1].append(wait)


def waits_behind_the_use(forward, backward):
    for wait in _all(backward, torch.ops.ao.wait_tensor.default):
        _products(backward)[-1].append(wait)


MUTATED = {
    records_behind_the_change: "behind everything else",
    waits_before_the_write: "leave the last wait to the caller",
    leaves_x: "x.copy_(...) at the end does it",
    writes_what_was_there: "what goes into x has to be",
    writes_too_much: "the caller's x is doubled, whatever is late",
    needs_no_event: "compute the result in `with side:`",
}
SCHEDULE = {
    leaves_everything: "put products between a copy and its wait",
    forward_only: "start a reload some products before its wait",
    to_both_ends: "wait a few products behind the copy",
    waits_behind_the_use: "a wait stays before the users",
}


WRONG = {"compiled_streams.mutated": MUTATED, "compiled_streams.schedule": SCHEDULE}

"""Plausible wrong answers to the exercises of lesson 07, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch


def one_stream(x, side):
    return torch.sin(x * 2) + torch.cos(x * 2)


def forgets_the_way_back(x, side):
    y = x * 2
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        b = torch.cos(y)
    return torch.sin(y) + b


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


def everything(layers):
    return list(range(layers))


def the_last_ones(layers):
    return [layers - 2]


def nothing(layers):
    return []


BESIDE = {
    one_stream: "put one of them into `with side:`",
    forgets_the_way_back: "record an event behind the first op",
}
MUTATED = {
    records_behind_the_change: "behind everything else",
    waits_before_the_write: "leave the last wait to the caller",
    leaves_x: "x.copy_(...) at the end does it",
    writes_what_was_there: "what goes into x has to be",
    writes_too_much: "the caller's x is doubled, whatever is late",
    needs_no_event: "compute the result in `with side:`",
}
CHOOSE = {
    everything: "the link is full",
    the_last_ones: "needed again at once",
    nothing: "return at least one layer",
}


WRONG = {
    "compiled_streams.beside": BESIDE,
    "compiled_streams.mutated": MUTATED,
    "compiled_streams.choose": CHOOSE,
}

"""Plausible wrong answers to the exercises of lesson 07, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch


def records_after_the_change(x, side):
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


def no_edges(nodes):
    return []


def everything_in_a_row(nodes):
    order = [n.name for n in nodes if n.word not in ("input", "view")]
    return [(a, b) for a, b in zip(order, order[1:], strict=False)]


def only_records_and_waits(nodes):
    marks = {n.arguments[0]: n.name for n in nodes if n.word == "record_event"}
    return [(marks[n.arguments[0]], n.name) for n in nodes if n.word == "wait_event"]


def backwards(nodes):
    order = [n.name for n in nodes]
    return [(order[-1], order[0])]


def strange_names(nodes):
    return [("a", "nobody")]


def words_for_pairs(nodes):
    return ["ab", 3]


def nothing_reused():
    return {
        "A": ("buf0", "wait after the kernel", "another torch"),
        "B": ("buf2", "wait before what it waits for", "events for wait_stream"),
        "C": ("", "none", "nothing"),
    }


def other_words():
    return {letter: ("buf0", "a race", "fix it") for letter in "ABC"}


def other_buffer():
    found = nothing_reused()
    return {**found, "A": ("buf8", "memory used again", "return the value")}


def other_change():
    found = nothing_reused()
    return {**found, "A": ("buf0", "memory used again", "another torch")}


MUTATED = {
    records_after_the_change: "behind everything else",
    waits_before_the_write: "leave the last wait to the caller",
    leaves_x: "x.copy_(...) at the end does it",
    writes_what_was_there: "what goes into x has to be",
    writes_too_much: "the caller's x is doubled, whatever is late",
    needs_no_event: "compute the result in `with side:`",
}
TIE = {
    no_edges: "tie it to the node before it on that stream",
    everything_in_a_row: "tie only what one stream has in a row",
    only_records_and_waits: "tie it to the node before it on that stream",
    backwards: "an edge goes from an earlier node",
    strange_names: "pairs of names of nodes",
    words_for_pairs: "pairs of names of nodes",
}
CODE = {
    nothing_reused: "memory of a value that the side stream still reads",
    other_words: "a cause is one of",
    other_buffer: "as the code calls it where that happens",
    other_change: "ask what in the source leads to this code",
}
WRONG = {"compiled_streams.mutated": MUTATED, "compiled_streams.tie": TIE, "compiled_streams.code": CODE}

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


def waits_for_the_stream(x, side):
    doubled = x + x
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        y = 1 + doubled
    x.copy_(doubled)
    return y


def remedy_four(x, side):
    x.mul_(2)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        made = torch.Event()
        made.record()
        return x + 1


def waits_for_nothing(x, side):
    doubled = x * 2
    with side:
        y = doubled + 1
    x.copy_(doubled)
    return y


def no_edges(nodes):
    return []


def everything_in_a_row(nodes):
    order = [n.name for n in nodes if n.word not in ("input", "view")]
    return [(a, b) for a, b in zip(order, order[1:], strict=False)]


def only_records_and_waits(nodes):
    marks = {n.arguments[0]: n.name for n in nodes if n.word == "record_event"}
    return [(marks[n.arguments[0]], n.name) for n in nodes if n.word == "wait_event"]


def _queues(nodes, of_wait, held_back=False):
    """The right edges, but for what a wait takes, and for the streams that go on."""
    tail, marks, found = {}, [], []
    for n in nodes:
        if n.word in ("input", "view"):
            continue
        on = n.stream if n.word == "kernel" else n.arguments[n.word != "wait_stream"]
        needs = [tail.get(on)]
        if n.word == "wait_event":
            needs += of_wait(n.arguments[0], marks)
        if n.word == "wait_stream":
            needs.append(tail.get(n.arguments[1]))
        found += [(one, n.name) for one in needs if one]
        tail[on] = n.name
        if n.word == "wait_stream" and held_back:
            tail[n.arguments[1]] = n.name
        if n.word == "record_event":
            marks.append((n.arguments[0], n.name))
    return found


def last_record_of_any_event(nodes):
    return _queues(nodes, lambda event, marks: [name for _, name in marks[-1:]])


def all_records_so_far(nodes):
    return _queues(nodes, lambda event, marks: [name for _, name in marks])


def holds_the_other_stream_back(nodes):
    return _queues(nodes, lambda event, marks: [name for one, name in marks if one == event], held_back=True)


def backwards(nodes):
    order = [n.name for n in nodes]
    return [(order[-1], order[0])]


def strange_names(nodes):
    return [("a", "nobody")]


def words_for_pairs(nodes):
    return ["ab", 3]


FINDINGS = {
    "A": ("buf1", "wait after the kernel", "events for wait_stream"),
    "B": ("buf1", "memory used again", "delete after the wait"),
    "C": ("", "none", "nothing"),
}


def nothing_reused():
    return {**FINDINGS, "B": ("buf0", "wait after the kernel", "events for wait_stream")}


def every_reuse_races():
    return {**FINDINGS, "C": ("buf0", "memory used again", "delete after the wait")}


def all_in_order():
    return {**FINDINGS, "A": ("", "none", "nothing")}


def other_words():
    return {letter: ("buf0", "a race", "fix it") for letter in "ABC"}


def other_buffer():
    return {**FINDINGS, "A": ("arg0_1", "wait after the kernel", "events for wait_stream")}


def names_a_buffer():
    return {**FINDINGS, "C": ("buf0", "none", "nothing")}


def other_change():
    return {**FINDINGS, "B": ("buf1", "memory used again", "nothing")}


MUTATED = {
    records_after_the_change: "after everything else",
    waits_before_the_write: "leave the last wait to the caller",
    leaves_x: "x.copy_(...) at the end does it",
    writes_what_was_there: "what goes into x has to be",
    writes_too_much: "the caller's x is doubled, whatever is late",
    needs_no_event: "compute the result in `with side:`",
    waits_for_the_stream: "hand the doubled values over by an event",
    remedy_four: "hand the doubled values over by an event",
    waits_for_nothing: "let the side stream wait for it before it reads them",
}
TIE = {
    no_edges: "tie it to the node before it on that stream",
    everything_in_a_row: "tie only what one stream has in a row",
    only_records_and_waits: "tie it to the node before it on that stream",
    last_record_of_any_event: "tie it to the record",
    all_records_so_far: "tie only what one stream has in a row",
    holds_the_other_stream_back: "tie only what one stream has in a row",
    backwards: "an edge goes from an earlier node",
    strange_names: "pairs of names of nodes",
    words_for_pairs: "pairs of names of nodes",
}
CODE = {
    nothing_reused: "memory of a value that another stream still reads",
    every_reuse_races: "does reuse come before it",
    all_in_order: "the line of its wait_event",
    other_words: "a cause is one of '",
    other_buffer: "name the buffer that is read",
    names_a_buffer: "nothing is out of order in it",
    other_change: "ask what in the source leads to this code",
}
WRONG = {"compiled_streams.mutated": MUTATED, "compiled_streams.tie": TIE, "compiled_streams.code": CODE}

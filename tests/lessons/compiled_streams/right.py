"""Right answers to the exercises of lesson 07 in other words than those of the solutions."""

from __future__ import annotations

import torch


def the_stream_records(x, side):
    doubled = x * 2
    ready = torch.accelerator.current_stream().record_event()
    with side:
        side.wait_event(ready)
        y = doubled + 1
    x.copy_(doubled)
    return y


def waits_for_the_stream(x, side):
    doubled = x + x
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        y = 1 + doubled
    x.copy_(doubled)
    return y


def whole_queues(nodes):
    """All pairs of a queue, and every wait after all that it stands for."""
    queues, marks, pairs = {}, {}, set()
    for node in nodes:
        if node.word in ("input", "view"):
            continue
        name = node.stream if node.word == "kernel" else node.arguments[node.word != "wait_stream"]
        before = set(queues.setdefault(name, []))
        if node.word == "wait_event":
            before |= marks.get(node.arguments[0], set())
        if node.word == "wait_stream":
            before |= set(queues.get(node.arguments[1], []))
        pairs |= {(one, node.name) for one in before}
        queues[name].append(node.name)
        if node.word == "record_event":
            marks[node.arguments[0]] = {node.name}
    return pairs


def last_and_mark(nodes):
    """Lists in place of tuples; the last node of each queue, and the record of each event."""
    tail, mark, found = {}, {}, []
    for n in nodes:
        if n.word in ("input", "view"):
            continue
        on = n.stream if n.word == "kernel" else n.arguments[0] if n.word == "wait_stream" else n.arguments[1]
        if on in tail:
            found.append([tail[on], n.name])
        other = {"wait_event": mark, "wait_stream": tail}.get(n.word, {})
        key = n.arguments[1 if n.word == "wait_stream" else 0] if n.arguments else None
        if key in other:
            found.append([other[key], n.name])
        tail[on] = n.name
        if n.word == "record_event":
            mark[n.arguments[0]] = n.name
    return found


def by_the_code():
    return {
        "C": ["", "none", "nothing"],
        "B": ["buf3", "wait before what it waits for", "events for wait_stream"],
        "A": ["buf0", "memory used again", "return the value"],
    }


RIGHT = {
    "compiled_streams.mutated": (the_stream_records, waits_for_the_stream),
    "compiled_streams.tie": (whole_queues, last_and_mark),
    "compiled_streams.code": (by_the_code,),
}

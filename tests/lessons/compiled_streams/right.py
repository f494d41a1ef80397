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


def writes_on_the_side(x, side):
    """The caller waits for both streams, so x may be written on either."""
    doubled = x + x
    ready = torch.Event()
    ready.record()
    with side:
        ready.wait()
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


def one_after_another(nodes):
    """A generator; kernels of one stream are not tied to each other, a record to all of them."""
    seen, marks = [], {}
    for n in nodes:
        if n.word in ("input", "view"):
            continue
        on = n.stream if n.word == "kernel" else n.arguments[n.word != "wait_stream"]
        sources = [on, n.arguments[1]] if n.word == "wait_stream" else [on]
        for other, queue, word in seen:
            if queue in sources and not (word == n.word == "kernel"):
                yield other, n.name
        if n.word == "wait_event":
            yield marks[n.arguments[0]], n.name
        if n.word == "record_event":
            marks[n.arguments[0]] = n.name
        seen.append((n.name, on, n.word))


def by_the_code():
    return {
        "C": [None, "none", "nothing"],
        "B": ["buf12", "memory used again", "delete after the wait"],
        "A": ["buf1", "wait after the kernel", "events for wait_stream"],
    }


RIGHT = {
    "compiled_streams.mutated": (the_stream_records, writes_on_the_side),
    "compiled_streams.tie": (whole_queues, last_and_mark, one_after_another),
    "compiled_streams.code": (by_the_code,),
}

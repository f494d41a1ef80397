"""Stream patterns, one question each, and what this torch makes of them: the table of lesson 07, by version.

`python -m tools.recapture patterns` keeps what the torch that runs it makes of them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from oddrank.files import write as write_file

from course.compiled_streams.kernels import event_between, kernels, softmaxed
from course.compiled_streams.written import program_of, shortened, write
from course.shared.streams import StreamGraph, simulate
from course.shared.streams.captured import as_data, compiled
from labkit import files, torch_compat
from labkit.ranks import Ranks

__all__ = [
    "CODE",
    "CODE_ROWS",
    "FILE",
    "QUESTIONS",
    "keep",
    "measure",
    "orders",
    "pieces",
    "recorded",
    "through_a_wait",
]

FILE = files.ours("data/captured/stream_patterns.json")


def hand_over(x, one, two):  # type: ignore[no-untyped-def]
    """An event hands a value over; an event hands the result back."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    done.wait()
    return b + 1


def waits_for_streams(x, one, two):  # type: ignore[no-untyped-def]
    """The same with wait_stream."""
    a = x @ x
    here = torch.accelerator.current_stream()
    one.wait_stream(here)
    with one:
        b = a @ x
    here.wait_stream(one)
    return b + 1


def two_waiters(x, one, two):  # type: ignore[no-untyped-def]
    """Two streams wait for one event, and an event of each brings its result back."""
    a = x.sin()
    ready, first, second = torch.Event(), torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a.cos()
        first.record()
    with two:
        ready.wait()
        c = a.tanh()
        second.record()
    first.wait()
    second.wait()
    return b + c


def works_beside(x, one, two):  # type: ignore[no-untyped-def]
    """The default stream goes on with work of its own while the side stream reads `a`."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    c = x.sin() @ x
    done.wait()
    return b + c


def works_beside_and_keeps(x, one, two):  # type: ignore[no-untyped-def]
    """The same, and `a` is returned, so its memory is not given to anything else."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    c = x.sin() @ x
    done.wait()
    return b + c, a


def works_beside_and_deletes(x, one, two):  # type: ignore[no-untyped-def]
    """The same as `works_beside`, and `a` is deleted after the wait."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    c = x.sin() @ x
    done.wait()
    del a
    return b + c


def works_after_the_wait(x, one, two):  # type: ignore[no-untyped-def]
    """The same as `works_beside`, with the default stream's own work after its wait."""
    a = x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    done.wait()
    c = x.sin() @ x
    return b + c


def fused_with_the_sum(x, one, two):  # type: ignore[no-untyped-def]
    """Own work that Inductor can fuse with the sum; what the side stream makes is returned."""
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = x @ x
        done.record()
    c = x.sin()
    done.wait()
    return b + c, b


def fused_and_joined(x, one, two):  # type: ignore[no-untyped-def]
    """The same, and wait_stream hands the result back."""
    ready, here = torch.Event(), torch.accelerator.current_stream()
    ready.record()
    with one:
        ready.wait()
        b = x @ x
    c = x.sin()
    here.wait_stream(one)
    return b + c, b


def fused_after_the_wait(x, one, two):  # type: ignore[no-untyped-def]
    """The same as `fused_with_the_sum`, with the own work after the wait."""
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = x @ x
        done.record()
    done.wait()
    c = x.sin()
    return b + c, b


def made_before(x, one, two):  # type: ignore[no-untyped-def]
    """The default stream reads after its wait what it made before the hand-over; what crosses is returned."""
    c, a = x.sin(), x @ x
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a @ x
        done.record()
    done.wait()
    return b + c, a, b


def pipeline(x, one, two):  # type: ignore[no-untyped-def]
    """Three parts, made one after the other on the side stream; the default one reads each as the next is made."""
    start, parts, total = torch.Event(), [], x
    start.record()
    with one:
        start.wait()
    for i in range(3):
        done = torch.Event()
        with one:
            parts.append((x + i) @ x)
            done.record()
        done.wait()
        total = total + parts[i] @ x
    return total


def pipeline_and_keeps(x, one, two):  # type: ignore[no-untyped-def]
    """The same, and the parts are returned."""
    start, parts, total = torch.Event(), [], x
    start.record()
    with one:
        start.wait()
    for i in range(3):
        done = torch.Event()
        with one:
            parts.append((x + i) @ x)
            done.record()
        done.wait()
        total = total + parts[i] @ x
    return total, *parts


def two_values_beside(x, one, two):  # type: ignore[no-untyped-def]
    """Two values are handed over, and the default stream goes on with work of its own."""
    a, b = x @ x, x.cos()
    ready, done = torch.Event(), torch.Event()
    ready.record()
    with one:
        ready.wait()
        c = a @ b
        done.record()
    d = (x + 1) @ x
    done.wait()
    return c - d


def two_waiters_joined(x, one, two):  # type: ignore[no-untyped-def]
    """Two streams wait for one event, and wait_stream brings their results back."""
    a = x.sin() + 1
    ready = torch.Event()
    ready.record()
    with one:
        ready.wait()
        b = a.cos() * 2
    with two:
        ready.wait()
        c = a.tanh() - 3
    here = torch.accelerator.current_stream()
    here.wait_stream(one)
    here.wait_stream(two)
    return b + c


def changes_and_records(x, one, two):  # type: ignore[no-untyped-def]
    """An event after a change of an input."""
    x.mul_(2)
    ready = torch.Event()
    ready.record()
    with one:
        ready.wait()
        return x + 1


def records_aside(x, one, two):  # type: ignore[no-untyped-def]
    """The same event on a stream that has waited for the change."""
    x.mul_(2)
    one.wait_stream(torch.accelerator.current_stream())
    with one:
        ready = torch.Event()
        ready.record()
        return x + 1, ready


def same_on_default(x, one, two):  # type: ignore[no-untyped-def]
    """Two products on the default stream."""
    a = x @ x
    return a @ x


def same_on_side(x, one, two):  # type: ignore[no-untyped-def]
    """The same, the second one on a side stream."""
    a = x @ x
    with one:
        return a @ x


CODE = (
    hand_over,
    waits_for_streams,
    two_waiters,
    two_waiters_joined,
    works_beside,
    works_beside_and_keeps,
    works_beside_and_deletes,
    works_after_the_wait,
    fused_with_the_sum,
    fused_and_joined,
    fused_after_the_wait,
    made_before,
    pipeline,
    pipeline_and_keeps,
)
MORE = (two_values_beside,)  # code that is kept, for an exercise, and has no row
ORDERED = "the orders that the graph of `hand_over` permits"
CODE_ROWS = {  # row of the table: function
    "an event hands over, an event hands back": "hand_over",
    "wait_stream hands over and back": "waits_for_streams",
    "two streams wait for one event, joined by events": "two_waiters",
    "two streams wait for one event, joined by wait_stream": "two_waiters_joined",
    "other work beside the side stream": "works_beside",
    "the same, `a` is returned": "works_beside_and_keeps",
    "the same, `a` is deleted after the wait": "works_beside_and_deletes",
    "the same, the other work comes after the wait": "works_after_the_wait",
    "own work that Inductor can fuse with the sum, what crosses is returned": "fused_with_the_sum",
    "the same, wait_stream hands back": "fused_and_joined",
    "the same, the own work comes after the wait": "fused_after_the_wait",
    "own work before the hand-over, read after the wait, what crosses is returned": "made_before",
    "three parts made on the side stream, each read as the next is made": "pipeline",
    "the same, the parts are returned": "pipeline_and_keeps",
}
PIECES = {
    "A": ("2.14.0", "two_waiters_joined"),
    "B": ("2.15.0", "two_values_beside"),
    "C": ("2.15.0", "works_after_the_wait"),
}
NO_REUSE = "other work beside, allow_buffer_reuse = False"
TRAINED = {  # row of the table: function; its graphs with gradients
    "with gradients: other work beside the side stream": works_beside,
    "with gradients: the other work comes after the wait": works_after_the_wait,
    "with gradients: wait_stream hands over and back": waits_for_streams,
}
RECORD = "a record between kernels of one stream"
SOFTMAX = "softmax twice on a side stream"
REMEDY = "event after a changed input, torch's remedy 4"
CACHED, CACHED_SIDE = (
    "the plain code is cached, then it gets a stream",
    "code with a stream is cached, then plain code",
)
QUESTIONS = (
    ORDERED,
    *CODE_ROWS,
    NO_REUSE,
    *TRAINED,
    RECORD,
    SOFTMAX,
    REMEDY,
    CACHED,
    CACHED_SIDE,
)


def measure() -> dict[str, Any]:
    """What this torch makes of the patterns: (verdict, what was seen) by question, and Inductor's code by function.

    Takes the package triton, and no GPU: the code is for an H100 that is not there, and nothing is run.
    """
    found = _in_a_new_process(_measure)
    if found["rows"]:
        found["rows"] |= {row: _in_a_new_process(_trained, fn) for row, fn in TRAINED.items()}
        found["rows"] = {one: found["rows"][one] for one in QUESTIONS}
    return dict(found)


def _in_a_new_process(look: Callable[..., Any], *given: Any) -> Any:
    """What `look` returns in a process of its own: what was compiled before changes what torch makes of a function."""
    with Ranks(1, "cpu", "gloo", timeout=500, quiet=True) as child:
        return child.run(look, *given)[0]


def keep(date: str, triton: str) -> Any:
    """Put what `measure` finds into FILE, under this torch's version."""
    version, found = torch.__version__.partition("+")[0], measure()
    body = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    body[version] = {"date": date, "triton": triton, **found}
    ordered = dict(sorted(body.items()))
    return write_file(FILE, (json.dumps(ordered, indent=1, ensure_ascii=False) + "\n").encode())


def recorded() -> dict[str, dict[str, Any]]:
    """What was kept, by torch version."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def _measure() -> dict[str, Any]:
    x = torch.linspace(0, 1, 16).reshape(4, 4)
    if not torch_compat.has_stream_graphs():
        found = as_data(*compiled(waits_for_streams, (x,), 2, False))
        words = [n.word if n.word != "kernel" else n.target for n in found.forward[0].nodes]
        said = "wait_stream is not in the graph" if "wait_stream" not in words else str(words)
        return {"no_streams": said, "rows": {}, "code": {}}
    shapes = {fn.__name__: (64, 64) for fn in (*CODE, *MORE)}
    code = write((*CODE, *MORE, event_between, softmaxed), shapes, 2)  # before all else
    with torch_compat.patched("inductor.config", allow_buffer_reuse=False):
        code["no_reuse"] = write((works_beside,), shapes, 2)["works_beside"]
    rows = {ORDERED: _orders(as_data(*compiled(hand_over, (x,), 2, False)).forward[0])}
    for question, name in {**CODE_ROWS, NO_REUSE: "no_reuse"}.items():
        races = simulate(program_of(code[name])).races
        rows[question] = ["race" if races else "no race", races[0].text if races else ""]
    between = [does for _, _, does in kernels(code["event_between"])]
    late = any("sin" in one and "cos" in one for one in between)
    rows[RECORD] = [
        "event late" if late else "in place",
        "one kernel does the work of both sides" if late else "",
    ]
    streams = list(dict.fromkeys(s for s, name, _ in kernels(code["softmaxed"]) if name.startswith("triton")))
    rows[SOFTMAX] = [
        "in place" if streams == ["stream1"] else "wrong stream",
        "kernels on " + ", ".join(streams),
    ]
    rows[REMEDY] = _remedy(x)
    rows[CACHED] = _cache(x, same_on_default, same_on_side)
    rows[CACHED_SIDE] = _cache(x, same_on_side, same_on_default)
    kept = [fn.__name__ for fn in (*CODE, *MORE)] + ["no_reuse"]
    return {
        "rows": rows,
        "code": {name: shortened(code[name]) for name in kept},
    }


def _trained(fn: Callable[..., Any]) -> list[str]:
    """Whether AOTAutograd makes graphs of a function with gradients, and whether they race in their own order."""
    x = torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()
    found = as_data(*compiled(fn, (x,), 2, True))
    if found.error or not found.backward:
        return ["fails", found.error[:200]]
    races = [race.text for graph in (*found.forward, *found.backward) for race in graph.races()]
    return ["race", races[0]] if races else ["no race", "graphs only"]


def _orders(graph: StreamGraph) -> list[str]:
    """Every order that the graph permits, as its stream operators and kernels; and how many of them race."""
    found = orders(graph)
    racing = sum(bool(one.races()) for one in found)
    return ["order not fixed" if racing else "order fixed", f"{racing} of {len(found)} orders race"]


def through_a_wait(graph: StreamGraph, operator: str) -> bool:
    """Whether a value that the operator takes has come through a wait for an event."""
    nodes = {n.name: n for n in graph.nodes}
    (taken,) = [n.needs for n in graph.nodes if n.word == "kernel" and n.target.startswith(operator)]
    for name in taken:
        while nodes[name].word == "view":
            name = nodes[name].needs[0]
        if nodes[name].word == "wait_event":
            return True
    return False


def pieces() -> dict[str, str]:
    """The code that the exercise `code` asks about, by letter."""
    kept = recorded()
    return {letter: kept[version]["code"][name] for letter, (version, name) in PIECES.items()}


def orders(graph: StreamGraph) -> list[StreamGraph]:
    """Every order of a small graph in which each node comes after the nodes that it needs.

    Orders that differ only in where inputs and views stand count as one.
    """
    nodes = {n.name: n for n in graph.nodes}
    free = {n.name for n in graph.nodes if n.word in ("input", "view") or n.target.startswith("get_")}

    def needs(name: str) -> frozenset[str]:
        """What a node needs, with inputs and views passed through."""
        direct = nodes[name].needs
        return frozenset(m for one in direct for m in (needs(one) if one in free else (one,)))

    acting = {name: needs(name) for name in nodes if name not in free}
    found: list[StreamGraph] = []

    def add(done: tuple[str, ...]) -> None:
        if len(done) == len(acting):
            placed = _with_views(done, nodes, free)
            found.append(replace(graph, nodes=tuple(nodes[one] for one in placed)))
        for name, before in acting.items():
            if name not in done and before <= set(done):
                add((*done, name))

    add(())
    return found


def _with_views(done: tuple[str, ...], nodes: dict[str, Any], free: set[str]) -> list[str]:
    placed: list[str] = []

    def place(name: str) -> None:
        for one in nodes[name].needs:
            if one in free and one not in placed:
                place(one)
        placed.append(name)

    for name in done:
        place(name)
    for name in free:
        if name not in placed:
            place(name)
    return placed


def _remedy(x: torch.Tensor) -> list[str]:
    aside = as_data(*compiled(records_aside, (x,), 2, False)).forward
    refused = as_data(*compiled(changes_and_records, (x,), 2, False)).error
    words = [n.target if n.word == "kernel" else n.word for n in aside[0].nodes] if aside else []
    late = "record_event" in words and "copy_" in words[words.index("record_event") :]
    also = "; the plain form is refused" if "event was recorded" in refused else ""
    return [
        "write after the event" if late else "in place",
        ("the graph ends in copy_" if late else "") + also,
    ]


def _cache(x: torch.Tensor, *functions: Callable[..., Any]) -> list[str]:
    """Whether the second function gets the first one's code out of the cache, and what then happens."""
    stream, hit, said = torch_compat.pretend_streams(), False, ""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for fn in functions:
            torch_compat.dynamo_reset()
            before, said = torch_compat.cache_hits(), ""
            try:
                torch.compile(fn, fullgraph=True)(x, stream(1), stream(2))
            except Exception as error:
                said = f"; {type(error).__name__} on a CPU"
            hit = torch_compat.cache_hits() > before
    return ["the other's code", "a hit" + said] if hit else ["its own code", "a miss" + said]

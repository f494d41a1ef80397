"""Lesson 07: edges that a graph lacks, three pieces of Inductor's code, and a function whose graph is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from course.compiled_streams.threads import Replay, tried
from course.shared.streams import StreamGraph
from course.shared.streams.graph import GraphNode
from course.shared.streams.judging import in_its_own_child, written
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["code", "mutated", "tie"]

ORDERS = 100
GIVEN = [0.5, 1.0, 2.0, 3.0]  # different numbers, of which none is its own double
LATE_S = 0.05  # by which one kernel after another is late


def judge_tie(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The attempt's edges, added to graphs of known programs: no order races, and nothing is tied that need not be."""
    written(attempt)
    hint = "it is called as my_edges(nodes), and returns (earlier, later) pairs of names of nodes"
    for name, graph in GRAPHS.items():
        found = on_ranks(ranks, _listed, attempt, list(graph.nodes), only=0, hint=hint)[0]
        if not isinstance(found, (list, tuple, set)) or any(
            not isinstance(one, (list, tuple)) or len(one) != 2 for one in found
        ):
            raise Mistake(f"it returned {found!r}"[:200], hint)
        known = {n.name for n in graph.nodes}
        edges = {(str(a), str(b)) for a, b in found}
        if strange := {one for edge in edges for one in edge} - known:
            raise Mistake(f"{name}: there is no node {sorted(strange)[0]!r}", hint)
        order = {n.name: i for i, n in enumerate(graph.nodes)}
        back = [edge for edge in sorted(edges) if order[edge[0]] >= order[edge[1]]]
        if back:
            raise Mistake(
                f"{name}: an edge from {back[0][0]} back to {back[0][1]}",
                "the nodes come in the order of the program: "
                "an edge goes from an earlier node to a later one",
            )
        tied = replace(graph, nodes=tuple(
            replace(n, needs=tuple(dict.fromkeys((*n.needs, *(a for a, b in sorted(edges) if b == n.name)))))
            for n in graph.nodes
        ))  # fmt: skip
        racing = [other for seed in range(ORDERS) if (other := tied.shuffled(seed)).races()]
        if racing:
            text = racing[0].races()[0].text
            raise Mistake(f"{name}: {len(racing)} of {ORDERS} orders race, such as {text}", _missing(text))
        allowed = _closure(graph)
        if extra := [edge for edge in sorted(edges) if edge not in allowed]:
            raise Mistake(
                f"{name}: no order races, and {extra[0][1]} has to come after {extra[0][0]}",
                "the program orders these two nowhere: tie only what one stream has in a row, or a wait joins",
            )
    say(f"0 of {ORDERS} orders race in {len(GRAPHS)} graphs, and what no wait joins stays free")


def _listed(attempt: Attempt, nodes: list[GraphNode]) -> Any:
    """What the attempt returns; a generator as a list, so that it can leave the rank."""
    found = attempt(nodes)
    return list(found) if isinstance(found, Iterator) else found


def _missing(text: str) -> str:
    if "record" in text and "too early" in text:
        return (
            "a record stands for what its stream has done so far: tie it to the node before it on that stream"
        )
    if "comes after it" in text:
        return "what a stream does after a wait depends on the wait: tie it to the next node on its stream"
    if "before record" in text or "before it was queued" in text:
        return (
            "a wait takes what was recorded or queued before it: tie it to the record, or to the last node of "
            "the other stream"
        )
    return "a stream is a queue: each node on it comes after the one before it"


def _on(node: GraphNode) -> str:
    """The stream in whose queue a node stands."""
    if node.word == "kernel":
        return node.stream
    return node.arguments[0 if node.word == "wait_stream" else 1]


def _closure(graph: StreamGraph) -> set[tuple[str, str]]:
    """All pairs (earlier, later) that the streams of a program order, values included."""
    before: dict[str, set[str]] = {}
    tails: dict[str, str] = {}
    records: dict[str, str] = {}
    for node in graph.nodes:
        direct = set(node.needs)
        if node.word not in ("input", "view"):
            direct |= {tails[_on(node)]} if _on(node) in tails else set()
            if node.word == "wait_event" and node.arguments[0] in records:
                direct.add(records[node.arguments[0]])
            if node.word == "wait_stream" and node.arguments[1] in tails:
                direct.add(tails[node.arguments[1]])
            tails[_on(node)] = node.name
            if node.word == "record_event":
                records[node.arguments[0]] = node.name
        before[node.name] = direct.union(*(before[one] for one in direct))
    return {(a, b) for b, some in before.items() for a in some}


def _graph(name: str, *lines: str) -> StreamGraph:
    """A graph of lines such as 'b = cos a @ s1', 'record e1 @ s1', 'wait e1 @ s1', 'wait_stream default s1'."""
    nodes = [GraphNode("x", "input", "x")]
    for i, line in enumerate(lines):
        words = line.replace("@", "").split()
        if words[0] in ("record", "wait"):
            nodes.append(
                GraphNode(f"{words[0]}_{i}", f"{words[0]}_event", words[0], arguments=(words[1], words[2]))
            )
        elif words[0] == "wait_stream":
            nodes.append(
                GraphNode(f"wait_stream_{i}", "wait_stream", "wait_stream", arguments=(words[1], words[2]))
            )
        else:
            made, operator, *given, on = (one for one in words if one != "=")
            values = tuple(given)
            nodes.append(GraphNode(made, "kernel", operator, on, values, values, (made,)))
    return StreamGraph(name, tuple(nodes), "")


GRAPHS = {
    "one event": _graph(
        "one event",
        "a = sin x @ default",
        "record e1 @ default",
        "wait e1 @ s1",
        "b = cos a @ s1",
        "wait_stream default s1",
        "c = add b @ default",
    ),
    "two waiters": _graph(
        "two waiters",
        "a = sin x @ default",
        "record e1 @ default",
        "wait e1 @ s1",
        "b = cos a @ s1",
        "wait e1 @ s2",
        "c = tanh a @ s2",
        "wait_stream default s1",
        "wait_stream default s2",
        "d = add b c @ default",
    ),
    "a chain": _graph(
        "a chain",
        "wait_stream s1 default",
        "a = sin x @ s1",
        "record e1 @ s1",
        "wait e1 @ s2",
        "b = cos a @ s2",
        "c = exp x @ s1",
        "record e2 @ s2",
        "wait e2 @ default",
        "d = neg b @ default",
        "wait_stream default s1",
        "e = add d c @ default",
    ),
    "work beside": _graph(
        "work beside",
        "a = sin x @ default",
        "a2 = mul a @ default",
        "record e1 @ default",
        "c = tan x @ default",
        "wait e1 @ s1",
        "b = cos a2 @ s1",
        "b2 = exp a @ s1",
        "record e2 @ s1",
        "wait e2 @ default",
        "d = add b c @ default",
        "e = add b2 d @ default",
    ),
    "two events": _graph(
        "two events",
        "a = sin x @ s1",
        "record e1 @ s1",
        "b = cos x @ s2",
        "record e2 @ s2",
        "wait e1 @ default",
        "c = exp a @ default",
        "wait e2 @ default",
        "d = add b c @ default",
    ),
    "the side works on": _graph(
        "the side works on",
        "a = sin x @ s1",
        "a2 = cos x @ s1",
        "wait_stream default s1",
        "b = tanh x @ s1",
        "c = mul a a2 @ default",
        "wait_stream default s1",
        "d = add b c @ default",
    ),
}


def judge_code(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Three pieces of Inductor's code: the kernel that may go wrong, why, and what to change."""
    written(attempt)
    hint = 'return {"A": (buffer, cause, change), ...} for ' + ", ".join(FOUND)
    answer = on_ranks(ranks, attempt, only=0, hint=hint)[0]
    if (
        not isinstance(answer, dict)
        or set(answer) != set(FOUND)
        or any(not isinstance(one, (list, tuple)) or len(one) != 3 for one in answer.values())
    ):
        raise Mistake(f"it returned {answer!r}"[:200], hint)
    wrong, hints = [], []
    for letter, (buffers, cause, changes) in FOUND.items():
        buffer, why, then = answer[letter]
        if why not in CAUSES or then not in CHANGES:
            raise Mistake(
                f"{letter}: {why!r}, {then!r}",
                f"a cause is one of {', '.join(map(repr, CAUSES))}; a change one of {', '.join(map(repr, CHANGES))}",
            )
        if why != cause:
            wrong.append(f"{letter}: the cause")
            hints.append(CAUSE_HINTS[letter])
        elif buffer not in buffers:
            wrong.append(f"{letter}: the buffer")
            hints.append(
                "name the buffer that is read, or overwritten, out of order"
                if cause != "none"
                else 'nothing is out of order in it: the buffer is ""'
            )
        elif then not in changes:
            wrong.append(f"{letter}: the change")
            hints.append(
                "ask what in the source leads to this code: the operator that waits, the lifetime of a value, "
                "or nothing that a reader wrote"
            )
    if wrong:
        raise Mistake("; ".join(wrong), hints[0])
    say("three pieces, three causes")


CAUSES = ("wait after the kernel", "wait before what it waits for", "memory used again", "none")
CHANGES = ("events for wait_stream", "delete after the wait", "nothing")
FOUND = {
    "A": (("buf1",), "wait after the kernel", ("events for wait_stream",)),
    "B": (("buf1", "buf12"), "memory used again", ("delete after the wait",)),
    "C": (("", None), "none", ("nothing",)),
}
CAUSE_HINTS = {
    "A": "A: for each stream, compare the line of its wait_event with the line of its first kernel",
    "B": "B: every read comes after its wait. Look at what happens to the memory of a value that another stream "
    "still reads",
    "C": "C: follow each buffer from its kernel to its last reader, and look where the wait stands. Is a wait "
    "missing, and does reuse come before it?",
}


def judge_mutated(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """An input is doubled in place and the side stream needs the doubled values: compiles, ordered, right.

    Judged by what x holds and what is returned when the real graph runs with one thread a stream, each kernel late
    in turn, and by where the write of x stands among the events.
    """
    graph, runs = _tried_out(attempt, "it is called as my_update(x, side)")
    doubled = [2 * x for x in GIVEN]
    kernels = [n for n in graph.nodes if n.word == "kernel"]
    x = next(n.name for n in graph.nodes if n.word == "input")
    writes = [n for n in kernels if x in n.writes]
    held = runs[0].inputs[0]
    if not writes:
        raise Mistake("the caller's x stays as it was", "write back into x: x.copy_(...) at the end does it")
    if _all_close([held], GIVEN):
        raise Mistake("x is written, and holds what it held", "what goes into x has to be the doubled values")
    if races := graph.races():
        raise Mistake(
            f"a race, {races[0].text}",
            "record an event on the default stream when the doubled values are made, and let the side stream wait "
            "for it before it reads them",
        )
    if not all(_all_close([run.inputs[0]], doubled) for run in runs):
        raise Mistake(
            f"after the call x holds {held}, of {GIVEN}", "the caller's x is doubled, whatever is late"
        )
    if not [n for n in kernels if n.stream != "default" and n not in writes]:
        raise Mistake("nothing runs on the side stream", "compute the result in `with side:`")
    if not _all_close(_returned(runs), [2 * x + 1 for x in GIVEN]):
        raise Mistake("it compiles, and gives other numbers", "return 2 * x + 1 of the x that came in")
    recorded = {
        n.arguments[0] for n in graph.nodes if n.word == "record_event" and n.arguments[1] == "default"
    }
    waited = [n.arguments[0] for n in graph.nodes if n.word == "wait_event" and n.arguments[1] != "default"]
    if not recorded & {*waited}:
        raise Mistake(
            "the side stream waits for no event of the default stream",
            "hand the doubled values over by an event: record it on the default stream, wait for it on the side",
        )
    places = {n.name: i for i, n in enumerate(graph.nodes)}
    handed = [places[n.name] for n in graph.nodes if n.word in ("record_event", "wait_stream")]
    late = places[writes[-1].name] - max(handed, default=0)
    if late < 0:
        raise Mistake(
            "an event is recorded after the write of x",
            "nothing in the call needs the written x: record the event after what the side stream reads",
        )
    say(
        f"it compiles; x holds {held} after the call, written {late} nodes after what the side stream waits for; "
        "right numbers, whichever kernel is late"
    )


def _tried_out(attempt: Attempt, hint: str) -> tuple[StreamGraph, list[Replay]]:
    """The forward graph of an attempt and its runs on threads. Raises Mistake where it does not compile."""
    written(attempt)
    found, runs = in_its_own_child(tried, attempt, (torch.tensor(GIVEN),), 1, LATE_S, hint=hint)
    if "event was recorded" in found.error:
        raise Mistake(
            found.error,
            "the write into x happens after everything else: compute a new tensor, hand that over, and write x last",
        )
    if "BackendCompilerFailed" in found.error:
        raise Mistake(
            f"not compiled: {found.error}",
            "this torch does not compile this order of waits and the write into x: leave the last wait to the caller",
        )
    if "raph_break" in found.error or "graph break" in found.error.lower():
        raise Mistake(f"not compiled: {found.error}", "one graph is asked for: no graph break")
    if found.error or not found.forward:
        raise Mistake(f"not compiled: {found.error}", hint)
    return found.forward[0], runs


def _returned(runs: list[Replay]) -> list[Any]:
    """The last value that the graph returned, in order and on threads, of every run."""
    return [values[-1] if values else None for run in runs for values in (run.expected, run.values)]


def _all_close(values: list[Any], right: list[float]) -> bool:
    return all(
        isinstance(value, list)
        and len(value) == len(right)
        and all(
            isinstance(v, float) and math.isclose(v, r, rel_tol=1e-5)
            for v, r in zip(value, right, strict=True)
        )
        for value in values
    )


mutated = Exercise(
    "compiled_streams.mutated",
    "hand over a changed input",
    "medium",
    10,
    (
        "it compiles in one graph",
        "the caller's `x` is doubled",
        "the side stream waits for an event and computes the doubled x, plus 1",
        "no race",
    ),
    judge_mutated,
)
tie = Exercise(
    "compiled_streams.tie",
    "the edges that the graph lacks",
    "medium",
    15,
    (
        f"0 of {ORDERS} orders race, in {len(GRAPHS)} graphs",
        "what no wait joins stays free",
    ),
    judge_tie,
)
code = Exercise(
    "compiled_streams.code",
    "three pieces of Inductor's code",
    "medium",
    10,
    ("for each piece the buffer, the cause and the change",),
    judge_code,
)

"""What a finished simulation says: its spans, arrows, critical path, races, and what did nothing."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.lessons.shared.streams import ops
from labkit.lessons.shared.streams.hazards import Explainer
from labkit.lessons.shared.streams.nodes import HostStep, Node
from labkit.lessons.shared.streams.timeline import ARROWS, SPANS, Timeline

__all__ = ["timeline"]

BECAUSE = {
    "host": "issued then",
    "stream": "the op before it on its stream",
    "event": "an event",
    "engine": "its engine was busy",
    "peer": "a peer came late",
}


def timeline(done: Any) -> Timeline:
    """The Timeline of a simulation that has run to its end."""
    hosts = done.hosts
    several = len(hosts) > 1
    first = next(iter(hosts.values())).program
    name = first.name if not several else " | ".join(dict.fromkeys(h.program.name for h in hosts.values()))
    kernels = [node for node in done.nodes if node.number]
    rows: list[tuple] = [
        (n.rank, n.stream, n.name, n.kind, n.ready, n.start, n.end, n.index, BECAUSE[n.why[0]])
        for n in kernels
    ]
    for host in hosts.values():
        rows += [
            (host.rank, "host", s.name, s.kind, s.start, s.start, s.end, s.index, "")
            for s in host.steps
            if s.end > s.start
        ]
    arrows = [
        (
            node.rank,
            other.stream,
            other.end,
            node.stream,
            node.end,
            other.name if other.kind == "record" else "",
        )
        for node in done.nodes
        if node.kind == "wait"
        for word, other in node.after
        if word != "stream" and other.rank == node.rank
    ]
    explainers = {rank: Explainer(host.program, host.captured) for rank, host in hosts.items()}
    races = [explainers[found[4].rank].race(found) for found in done.accesses.found]
    return Timeline(
        name,
        "simulated",
        first.unit,
        pd.DataFrame(rows, columns=list(SPANS)),
        pd.DataFrame(arrows, columns=list(ARROWS)),
        _path(done),
        tuple(races),
        tuple(_notes(done)),
        _memory(done),
    )


def _memory(done: Any) -> pd.DataFrame | None:
    rows = [(host.rank, *given) for host in done.hosts.values() for given in host.memory.given]
    return pd.DataFrame(rows, columns=["rank", "time", "used", "reserved"]) if rows else None


def _notes(done: Any) -> list[str]:
    """What a reader should know though it is no race: waits that do nothing."""
    found = []
    for host in done.hosts.values():
        who = f"rank {host.rank}: " if len(done.hosts) > 1 else ""
        for index, took in host.captured.items():
            if took is None:
                op = host.program.ops[index]
                event = op.event if isinstance(op, ops.Wait) else op.name
                found.append(
                    f"{who}{host.program.where(index)} does nothing: {event!r} was not recorded before"
                )
    return found


def _path(done: Any) -> pd.DataFrame:
    """The chain of ops that the end depends on, first op first: shorten one of these, or nothing gets faster."""
    ends: list[Any] = [node for node in done.nodes if node.number]
    ends += [host.step for host in done.hosts.values() if host.step]
    # of two that end together the kernel: it is why the host waited
    at: Any = max(ends, key=lambda one: (one.end, isinstance(one, Node)), default=None)
    rows: list[list[Any]] = []
    word = ""
    while at is not None:
        if isinstance(at, HostStep):
            if at.kind == "synchronize" and at.target is not None and at.end > at.start:
                word, at = "a synchronize", at.target
                continue
            if at.end > at.start:
                _add(rows, [_rank(done, at), "host", at.name, at.start, at.end, word])
            word, at = "the host before it", at.before
            continue
        if at.why[0] == "peer":  # one collective, which the other rank's part stands for
            at = at.why[1]
            continue
        if at.number:
            _add(rows, [at.rank, at.stream, at.name, at.start, at.end, word])
            word = ""
        # of several marks in a row the one that says most: an event rather than the stream that it stands in
        kind = BECAUSE[at.why[0]]
        word = kind if not word or word == BECAUSE["stream"] else word
        at = at.why[1]
    rows.reverse()
    # `word` names why the op *after* a row could start only then: move it there
    table = pd.DataFrame(rows, columns=["rank", "lane", "name", "start", "end", "because"])
    if len(table):
        table["because"] = [word if word and word != BECAUSE["host"] else "the start", *table["because"][:-1]]
    return table


def _rank(done: Any, step: HostStep) -> int:
    return next((host.rank for host in done.hosts.values() if any(step is s for s in host.steps)), 0)


def _add(rows: list[list[Any]], row: list[Any]) -> None:
    """Launches in a row are one row."""
    if rows and row[1:3] == ["host", "launch"] == rows[-1][1:3] and rows[-1][3] == row[4]:
        rows[-1][3] = row[3]
        return
    rows.append(row)

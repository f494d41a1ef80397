"""Streams inside the compiler, around and behind its graphs: the prefix, sums of gradients, late write-backs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit import torch_compat
from labkit.lessons.compiled_streams.captured import capture, in_a_child
from labkit.lessons.compiled_streams.claims.stream_graphs import mutates_and_records
from labkit.lessons.compiled_streams.inside import look, unchecked
from labkit.study.checks import Bench, Result, Seen, judging, probe, quietly, verdict


@probe
def inside(bench: Bench) -> Seen:
    """What runs before a graph with streams, the backward of a value used on two streams, and a late write-back."""

    def side_by_side(x, one, two):
        with one:
            a = torch.sin(x)
        with two:
            return a + torch.cos(x)

    def used_twice(x, y, one, two):
        here = torch.accelerator.current_stream()
        with one:
            p = torch.tanh(x)
        with two:
            q = torch.sin(y)
        here.wait_stream(one)
        here.wait_stream(two)
        z = p + q
        with one:
            a = torch.exp(z)
        with two:
            b = torch.cos(z)
        return a, b

    def streamed(x, side):  # a product: Inductor needs no C++ compiler for it
        with side:
            return x @ x

    x = torch.ones(4)
    given = [x.clone().requires_grad_() for _ in range(2)]
    prefix, table = quietly(lambda: look(side_by_side, x, streams=2))
    backward = quietly(lambda: capture(used_twice, *given, streams=2, gradients=True)).backward[0]
    late = quietly(unchecked, mutates_and_records, x).forward[0]
    return {
        "prefix": prefix,
        "table": table,
        "backward": [
            [n.name, n.word, n.target, n.stream, list(n.needs), list(n.arguments)] for n in backward.nodes
        ],
        "late": [n.target if n.word == "kernel" else n.word for n in late.nodes],
        "inductor": quietly(in_a_child, _run_by_inductor, streamed),
    }


def _run_by_inductor(fn: Callable[..., Any]) -> str:
    """In a child: what goes wrong when a CPU runs what Inductor makes of a function with a stream."""
    stream = torch_compat.pretend_streams()
    with torch_compat.no_compile_caches():
        try:
            torch.compile(fn, fullgraph=True)(torch.ones(16, 16), stream(1))
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


@judging(inside)
def prefix_fills_the_table(seen: Seen) -> Result:
    """Instructions before the graph hand the streams to what stores them by their index."""
    stores = [line.split()[-1] for line in seen["prefix"] if "object" in line and "LOAD_ATTR" in line]
    loads = [line for line in seen["prefix"] if line in ("LOAD_FAST one", "LOAD_FAST two")]
    ok = bool(stores) and len(loads) == 2 and {"stream 1", "stream 2"} <= set(seen["table"])
    return verdict(
        ok, f"{', '.join(stores) or 'no store'} of {len(loads)} streams; table: {', '.join(seen['table'])}"
    )


@judging(inside)
def labels_reach_the_code(seen: Seen) -> Result:
    """AOTAutograd's backward has streams, and the code that Inductor writes names one (which a CPU does not have)."""
    streams = sorted({row[3] for row in seen["backward"] if row[1] == "kernel"})
    return verdict(
        len(streams) > 1 and "stream" in seen["inductor"],
        f"backward on {', '.join(streams)}; Inductor's code, run on a CPU: {seen['inductor'] or 'no error'}",
    )


def _sums(seen: Seen) -> list[tuple[str, str, list[str]]]:
    """(name, stream, streams of its users in order) of every sum of two gradients; views hand a value on."""
    rows = seen["backward"]
    found = []
    for name, word, target, stream, _, _ in rows:
        if word == "kernel" and target.startswith("add"):
            same = {name}
            users = []
            for other in rows:
                if same & set(other[4]):
                    if other[1] == "view" or other[1].endswith("event"):
                        same.add(other[0])
                    elif other[1] == "kernel":
                        users.append(other[3])
            found.append((name, stream, users))
    return found


@judging(inside)
def sums_on_the_first_user(seen: Seen) -> Result:
    """A sum of gradients is on the stream of the first operator that uses it."""
    sums = [row for row in _sums(seen) if row[2]]
    said = "; ".join(f"{name} on {stream}, used on {', '.join(users)}" for name, stream, users in sums)
    return verdict(
        bool(sums) and all(stream == users[0] for _, stream, users in sums), said or "no sum with users"
    )


@judging(inside)
def an_event_behind_the_sum(seen: Seen) -> Result:
    """Behind a sum that another stream uses, an event is recorded on its stream and waited for on the other."""
    sums = [row for row in _sums(seen) if any(user != row[1] for user in row[2])]
    names = [row[0] for row in seen["backward"]]
    good, said = bool(sums), []
    for name, stream, users in sums:
        behind = [row for row in seen["backward"][names.index(name) + 1 :] if row[1].endswith("_event")]
        records = {row[5][0] for row in behind if row[1] == "record_event" and row[5][1] == stream}
        waited = {row[5][1] for row in behind if row[1] == "wait_event" and row[5][0] in records}
        others = {user for user in users if user != stream}
        good = good and others <= waited
        said.append(
            f"behind {name} on {stream}: {', '.join(sorted(waited)) or 'nobody'} waits, "
            f"{', '.join(sorted(others))} uses it"
        )
    return verdict(good, "; ".join(said) or "no sum is used on another stream")


@judging(inside)
def the_write_back_comes_behind_the_record(seen: Seen) -> Result:
    """Without Dynamo's check, the graph records the event first and writes the input back behind it."""
    order = [word for word in seen["late"] if word in ("record_event", "wait_event", "copy_")]
    ok = "record_event" in order and order[-1:] == ["copy_"]
    return verdict(ok, f"without the check: {', '.join(order) or 'neither'}")


@judging(inside)
def the_owner_is_known(seen: Seen) -> Result:
    """What waits before the memory is used again is the stream that the tensor came from."""
    of = {row[0]: row[3] for row in seen["backward"]}
    pairs = [
        (row[5][1], of.get(row[4][0], "?")) for row in seen["backward"] if row[1] == "sync_dealloc" and row[4]
    ]
    said = ", ".join(f"{waits} waits for a tensor of {owner}" for waits, owner in pairs)
    return verdict(bool(pairs) and all(waits == owner for waits, owner in pairs), said or "no sync_dealloc")

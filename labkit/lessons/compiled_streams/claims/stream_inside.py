"""Streams inside the compiler, around and behind its graphs: the prefix, sums of gradients, late write-backs."""

from __future__ import annotations

import re
from typing import Any

import torch

from labkit import torch_compat
from labkit.lessons.compiled_streams.captured import capture, compiled, in_a_child, short
from labkit.lessons.compiled_streams.claims.stream_graphs import mutates_and_records
from labkit.lessons.compiled_streams.inside import look
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict


@probe
def inside(bench: Bench) -> Seen:
    """What runs before a graph with streams, the backward of a value used on two streams, and a late write-back."""

    def side_by_side(x, one, two):
        with one:
            a = torch.sin(x)
        with two:
            return a + torch.cos(x)

    def steps(x, y, of_x, of_y, one, two):
        here = torch.accelerator.current_stream()
        with of_x:
            p = torch.tanh(x)
        with of_y:
            q = torch.sin(y)
        here.wait_stream(one)
        here.wait_stream(two)
        z = p + q
        with one:
            a = torch.exp(z)
        with two:
            b = torch.cos(z)
        return a, b

    def used_twice(x, y, one, two):
        return steps(x, y, one, two, one, two)

    def the_other_way(x, y, one, two):  # so that the first user of the sum stands on the other stream
        return steps(x, y, two, one, one, two)

    x = torch.ones(4)
    given = [x.clone().requires_grad_() for _ in range(2)]
    prefix, table = quietly(lambda: look(side_by_side, x, streams=2))
    found: Seen = {"prefix": prefix, "table": table, "error": "", "returned": (returned := {})}
    for name, fn in (("backward", used_twice), ("other backward", the_other_way)):
        made = quietly(_captured, fn, given)
        nodes = made.backward[0].nodes if made.backward else ()
        found[name] = [[n.name, n.word, n.target, n.stream, list(n.needs), list(n.arguments)] for n in nodes]
        found["error"] = found["error"] or made.error
        text = made.backward[0].text if made.backward else ""
        returned[name] = re.findall(r"\w+", text.partition("return (")[2].partition(")")[0])
    at_records, after = quietly(lambda: in_a_child(_values, mutates_and_records, ship=False))
    return {**found, "x": {"at records": at_records, "after": after}}


def _captured(fn: Any, given: list[torch.Tensor]) -> Any:
    return capture(fn, *given, streams=2, gradients=True)


def _values(fn: Any) -> tuple[list[float], float]:
    """In a child, without Dynamo's check: what the input holds when an event is recorded, and behind the graph."""
    torch_compat.no_mutation_check()
    (graph,) = compiled(fn, (torch.ones(4),), 1, False)[1]
    x, held = torch.ones(4), []

    class Watched(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            inside = [str(a.target) for a in n.args if isinstance(a, torch.fx.Node)]
            if any("record_event" in word for word in (short(n.target), *inside)):
                held.append(float(x[0]))
            return super().run_node(n)

    Watched(graph).run(x)
    return held, float(x[0])


@judging(inside)
def prefix_fills_the_table(seen: Seen) -> Result:
    """Instructions before the graph hand the streams to what stores them by their index."""
    stores = [line.split()[-1] for line in seen["prefix"] if "object" in line and "LOAD_ATTR" in line]
    loads = [line for line in seen["prefix"] if line in ("LOAD_FAST one", "LOAD_FAST two")]
    ok = bool(stores) and len(loads) == 2 and {"stream 1", "stream 2"} <= set(seen["table"])
    return verdict(
        ok, f"{', '.join(stores) or 'no store'} of {len(loads)} streams; table: {', '.join(seen['table'])}"
    )


def _sums(rows: list[Any]) -> list[tuple[str, str, list[tuple[int, str]]]]:
    """(name, stream, (position, stream) of its users in order) of every sum of two gradients; views hand it on."""
    found = []
    for name, word, target, stream, _, _ in rows:
        if word == "kernel" and target.startswith("add"):
            same = {name}
            users = []
            for at, other in enumerate(rows):
                if same & set(other[4]):
                    if other[1] == "view" or other[1].endswith("event"):
                        same.add(other[0])
                    elif other[1] == "kernel":
                        users.append((at, other[3]))
            found.append((name, stream, users))
    return [row for row in found if row[2]]


WAYS = ("backward", "other backward")


def _both(seen: Seen) -> list[Any]:
    """The sums of both backward passes; none where one was not made."""
    return [row for way in WAYS for row in _sums(seen[way])] if all(seen[way] for way in WAYS) else []


@judging(inside)
def sums_on_the_first_user(seen: Seen) -> Result:
    """A sum of gradients is on the stream of the first operator that uses it, whichever of the two streams that is."""
    if seen["error"]:
        return cannot_tell("a backward pass that compiles", seen["error"])
    sums = _both(seen)
    said = "; ".join(f"{name} on {on}, used on {', '.join(u for _, u in users)}" for name, on, users in sums)
    right = all(stream == users[0][1] for _, stream, users in sums)
    return verdict(len({stream for _, stream, _ in sums}) == 2 and right, said or "no sum with users")


@judging(inside)
def an_event_behind_the_sum(seen: Seen) -> Result:
    """Behind a sum an event is recorded on its stream, and each other stream waits for it before it uses the sum."""
    if seen["error"]:
        return cannot_tell("a backward pass that compiles", seen["error"])
    good, said = True, []
    for rows in (seen[way] for way in WAYS):
        names = [row[0] for row in rows]
        for name, stream, users in _sums(rows):
            for use, other in ((use, other) for use, other in users if other != stream):
                ok = any(
                    record[1] == "record_event"
                    and record[5][1] == stream
                    and wait[5] == [record[5][0], other]
                    for at, record in enumerate(rows[:use])
                    for wait in rows[at:use]
                    if at > names.index(name) and wait[1] == "wait_event"
                )
                said.append(
                    f"behind {name} on {stream}: {other} {'waits' if ok else 'does not wait'}, then uses it"
                )
                good = good and ok
    return verdict(len(said) > 1 and good, "; ".join(said) or "no sum is used on another stream")


@judging(inside)
def the_write_back_comes_behind_the_record(seen: Seen) -> Result:
    """Without Dynamo's check, the input holds the old value when the event is recorded, and the new one behind."""
    held, after = seen["x"]["at records"], seen["x"]["after"]
    said = f"without the check x is {', '.join(f'{v:g}' for v in held) or 'not seen'} at a record, {after:g} at the end"
    return verdict(bool(held) and after == 2 and after not in held, said)


@judging(inside)
def the_owner_is_known(seen: Seen) -> Result:
    """What waits before the memory is used again is the stream that the tensor came from."""
    if seen["error"]:
        return cannot_tell("a backward pass that compiles", seen["error"])
    of = {row[0]: row[3] for row in seen["backward"]}
    pairs = [
        (row[5][1], of.get(row[4][0], "?")) for row in seen["backward"] if row[1] == "sync_dealloc" and row[4]
    ]
    said = ", ".join(f"{waits} waits for a tensor of {owner}" for waits, owner in pairs)
    return verdict(bool(pairs) and all(waits == owner for waits, owner in pairs), said or "no sync_dealloc")


@judging(inside)
def the_next_work_is_delayed(seen: Seen) -> Result:
    """No kernel uses a tensor behind its sync_dealloc, which waits on its owner's stream; more work follows there."""
    if seen["error"]:
        return cannot_tell("a backward pass that compiles", seen["error"])
    found = []
    for rows, returned in ((seen[way], seen["returned"][way]) for way in WAYS):
        stops = any(row[1].startswith("synchronize") for row in rows)
        for at, (_, word, _, _, needs, numbers) in enumerate(rows):
            if word == "sync_dealloc":
                taken = [name for row in rows[at:] if row[1] == "kernel" for name in row[4]]
                last = not {*needs} & {*returned, *taken}
                left = sum(row[1] == "kernel" and row[3] == numbers[1] for row in rows[at:])
                found.append((numbers[1], left, last and not stops))
    said = "; ".join(f"{owner} waits, has {left} more to do" for owner, left, _ in found) or "no sync_dealloc"
    lasting = all(last for *_, last in found)
    said += f"; the tensors are {'freed there' if lasting else 'held longer'}"
    if found and lasting and not any(left for _, left, _ in found):
        return cannot_tell("a backward pass whose owner goes on behind the wait", said)
    return verdict(bool(found) and lasting, said)

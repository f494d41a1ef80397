"""What a graph with streams orders by itself, and what its backward does about memory.

Races and times are simulated, and what is said of them begins so; the rest is read off the graphs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from labkit.lessons.compiled_streams.captured import capture
from labkit.lessons.compiled_streams.claims.stream_graphs import two_streams
from labkit.lessons.shared.streams import simulate
from labkit.study.checks import Bench, Result, Seen, judging, probe, quietly, verdict

ORDERS = 100


@probe
def graphs(bench: Bench) -> Seen:
    """A hand-over between streams in other orders of its graph, and the backward pass of work on two streams."""

    def hands_over(x, side):
        a = torch.sin(x)
        made = torch.Event()
        made.record()
        with side:
            made.wait()
            b = torch.cos(a)
        torch.accelerator.current_stream().wait_stream(side)
        return b + 1

    forward = quietly(capture, hands_over, torch.ones(4)).forward[0]
    x, y = (torch.ones(4, requires_grad=True) for _ in range(2))
    backward = quietly(lambda: capture(two_streams, x, y, streams=2, gradients=True)).backward[0]
    return {
        "orders": ORDERS,
        "racing_as_it_is": len(forward.races()),
        "racing_orders": sum(bool(forward.shuffled(seed).races()) for seed in range(ORDERS)),
        "backward": [[node.word, *node.arguments] for node in backward.nodes],
        "delays": _delays(backward),
    }


def _delays(backward: Any) -> list[Seen]:
    """For each sync_dealloc: when the owner's next kernel starts, and the host is done, with and without it.

    Simulated, with work of 50 units on the stream that still reads, 1 elsewhere, and launches of 0.01.
    """
    nodes, recorded, found = backward.nodes, {}, []
    for i, node in enumerate(nodes):
        if node.word == "record_event":
            recorded[node.arguments[0]] = node.arguments[1]
        if node.word != "sync_dealloc":
            continue
        event, owner = node.arguments[:2]
        later = next((n.name for n in nodes[i:] if n.word == "kernel" and n.stream == owner), "")
        slow, pair = recorded.get(event), []
        for some in (nodes, tuple(n for n in nodes if n.word != "sync_dealloc")):
            program = replace(backward, nodes=some).program(
                lambda n, slow=slow: 50.0 if n.stream == slow else 1.0
            )
            spans = simulate(program, launch=0.01).spans
            starts = spans[spans["name"] == later]["start"]
            host = spans[spans["lane"] == "host"]["end"].max()
            pair.append([float(starts.iloc[0]) if len(starts) else None, round(float(host), 6)])
        found.append({"next": later, "with": pair[0], "without": pair[1]})
    return found


@judging(graphs)
def no_order_crosses_an_event(seen: Seen) -> Result:
    """No order of a graph that keeps every value before its users lets work cross an event (simulated)."""
    return verdict(
        not seen["racing_as_it_is"] and not seen["racing_orders"],
        f"simulated: {seen['racing_orders']} of {seen['orders']} orders that keep every value before its users race",
    )


@judging(graphs)
def the_owner_waits_before_reuse(seen: Seen) -> Result:
    """Each sync_dealloc lets a stream wait for an event that was recorded on another stream before it."""
    recorded: dict[str, str] = {}
    pairs = []
    for word, *arguments in seen["backward"]:
        if word == "record_event":
            recorded[arguments[0]] = arguments[1]
        elif word == "sync_dealloc":
            pairs.append((arguments[1], recorded.get(arguments[0])))
    ok = bool(pairs) and all(user is not None and user != owner for owner, user in pairs)
    said = "; ".join(f"{owner} waits for {user}" for owner, user in pairs)
    return verdict(ok, said or "no sync_dealloc in the backward graph")


@judging(graphs)
def the_host_goes_on(seen: Seen) -> Result:
    """Memory is handed back by sync_dealloc, and nothing in the graph stops the host."""
    words = [word for word, *_ in seen["backward"]]
    stops = [word for word in words if word.startswith("synchronize")]
    count = words.count("sync_dealloc")
    return verdict(count > 0 and not stops, f"{count} sync_dealloc, {', '.join(stops) or 'no synchronize'}")


@judging(graphs)
def the_next_work_is_delayed(seen: Seen) -> Result:
    """A sync_dealloc makes the owner's next kernel start later, and the host's program end no later (simulated)."""
    late = [one for one in seen["delays"] if one["next"] and one["with"][0] is not None]
    later = [one for one in late if one["with"][0] > one["without"][0]]
    same = all(one["with"][1] == one["without"][1] for one in seen["delays"])
    said = "; ".join(
        f"{one['next']} starts at {one['with'][0]:g} instead of {one['without'][0]:g} units, the host is done at "
        f"{one['with'][1]:g} and {one['without'][1]:g}"
        for one in late
    )
    return verdict(
        bool(later) and same, f"simulated: {said}" if late else "no sync_dealloc with work behind it"
    )

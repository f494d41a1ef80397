"""What a graph with streams orders by itself, and what its backward does about memory: read off the graphs."""

from __future__ import annotations

import torch

from labkit.lessons.compiled_streams.captured import capture
from labkit.lessons.compiled_streams.claims.stream_graphs import two_streams
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
        "backward": [[node.word, *(node.arguments or [node.stream])] for node in backward.nodes],
    }


@judging(graphs)
def no_order_crosses_an_event(seen: Seen) -> Result:
    """No order of a graph that keeps every value before its users lets work cross an event."""
    return verdict(
        not seen["racing_as_it_is"] and not seen["racing_orders"],
        f"{seen['racing_orders']} of {seen['orders']} orders that keep every value before its users leave a reader or "
        "a writer unordered",
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
    """Behind a sync_dealloc, which waits on the owner's stream, stands more work of it, and nothing stops the host."""
    nodes = seen["backward"]
    stops = [word for word, *_ in nodes if word.startswith("synchronize")]
    behind = [
        (arguments[1], sum(row == ["kernel", arguments[1]] for row in nodes[i:]))
        for i, (word, *arguments) in enumerate(nodes)
        if word == "sync_dealloc"
    ]
    said = "; ".join(f"{owner} waits, and has {count} kernels left" for owner, count in behind)
    return verdict(
        any(count for _, count in behind) and not stops,
        f"{said or 'no sync_dealloc'}; {', '.join(stops) or 'nothing stops the host'}",
    )

"""What a graph with streams orders by itself: read off the graph."""

from __future__ import annotations

import torch

from labkit.lessons.compiled_streams.captured import capture
from labkit.study.checks import Bench, Result, Seen, judging, probe, quietly, verdict

ORDERS = 100


@probe
def graphs(bench: Bench) -> Seen:
    """A hand-over to another stream and back, by events, in other orders of its graph."""

    def hands_over(x, side):
        a = torch.sin(x)
        made = torch.Event()
        made.record()
        back = torch.Event()
        with side:
            made.wait()
            b = torch.cos(a)
            back.record()
        back.wait()
        return b + 1

    forward = quietly(capture, hands_over, torch.ones(4)).forward[0]
    return {
        "orders": ORDERS,
        "racing_as_it_is": len(forward.races()),
        "racing_orders": sum(bool(forward.shuffled(seed).races()) for seed in range(ORDERS)),
    }


@judging(graphs)
def no_order_crosses_an_event(seen: Seen) -> Result:
    """No order of a graph that keeps every value before its users lets work cross an event."""
    return verdict(
        not seen["racing_as_it_is"] and not seen["racing_orders"],
        f"{seen['racing_orders']} of {seen['orders']} orders that keep every value before its users leave a reader or "
        "a writer unordered",
    )

"""Plausible wrong answers to the exercises of lesson 06, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch.distributed as dist

# --- streams.order ---


def no_event(p):
    p.kernel("produce", 4, writes="x")
    p.kernel("other", 5)
    p.kernel("consume", 4, on="side", reads="x")


def too_early(p):
    p.record("made")
    p.kernel("produce", 4, writes="x")
    p.kernel("other", 5)
    p.wait("made", "side")
    p.kernel("consume", 4, on="side", reads="x")


def before_the_record(p):
    p.kernel("produce", 4, writes="x")
    p.wait("made", "side")
    p.record("made")
    p.kernel("other", 5)
    p.kernel("consume", 4, on="side", reads="x")


def never(p):
    p.kernel("produce", 4, writes="x")
    p.kernel("other", 5)
    p.wait("made", "side")
    p.kernel("consume", 4, on="side", reads="x")


def behind_everything(p):
    p.kernel("produce", 4, writes="x")
    p.kernel("other", 5)
    p.wait_stream("default", on="side")
    p.kernel("consume", 4, on="side", reads="x")


def stops_the_host(p):
    p.kernel("produce", 4, writes="x")
    p.synchronize()
    p.kernel("other", 5)
    p.kernel("consume", 4, on="side", reads="x")


def leaves_something_out(p):
    p.kernel("produce", 4, writes="x")


def hands_nothing_over(p):
    p.kernel("produce", 4)
    p.kernel("other", 5)
    p.kernel("consume", 4, on="side")


def another_stream(p):
    p.kernel("produce", 4, on="aside", writes="x")


def empty(p):
    return None


ORDER = {
    no_event: "record an event behind the first op",
    too_early: "an event stands for what is queued when it is recorded",
    before_the_record: "record first, then wait",
    never: "a wait for an event that was never recorded",
    behind_everything: "also stands for `other`",
    stops_the_host: "a synchronize stops the host",
    leaves_something_out: "keep the kernels as they are given",
    hands_nothing_over: "produce writes x and consume reads it",
    another_stream: "look at the op that it names",
    empty: "call the methods of the program",
}

# --- streams.hide ---


def layer(p, i, on="comm", duration=2):
    p.kernel(f"backward {i}", 3, writes=f"g{i}")
    if on != "default":
        p.wait_stream("default", on=on)
    p.collective(f"all_reduce {i}", duration, on=on, reads=f"g{i}", writes=f"g{i}")


def step(p, reads="g0 g1 g2 g3"):
    p.kernel("step", 1, reads=reads)


def in_line(p):
    for i in range(4):
        layer(p, i, on="default")
    step(p)


def waits_for_each(p):
    for i in range(4):
        layer(p, i)
        p.wait_stream("comm")
    step(p)


def no_wait_before_the_step(p):
    for i in range(4):
        layer(p, i)
    step(p)


def shorter(p):
    for i in range(4):
        layer(p, i, duration=1)
    p.wait_stream("comm")
    step(p)


def host_waits(p):
    for i in range(4):
        layer(p, i)
    p.synchronize()
    step(p)


def reads_the_last(p):
    for i in range(4):
        layer(p, i)
    p.wait_stream("comm")
    step(p, reads="g3")


def touches_nothing(p):
    for i in range(4):
        p.kernel(f"backward {i}", 3, writes=f"g{i}")
        p.collective(f"all_reduce {i}", 2, on="comm")
    step(p)


HIDE = {
    in_line: "communicate on 'comm'",
    waits_for_each: "wait once, before the step",
    no_wait_before_the_step: "record an event behind the first op",
    shorter: "the work stays as it is",
    host_waits: "a synchronize stops the host",
    reads_the_last: "the step reads g0 to g3",
    touches_nothing: "reads and writes g0",
}

# --- streams.wait ---


def blocks(g, compute):
    dist.all_reduce(g)
    return g, compute()


def computes_first(g, compute):
    result = compute()
    dist.all_reduce(g)
    return g, result


def never_waits(g, compute):
    dist.all_reduce(g, async_op=True)
    return g, compute()


def forgets_to_compute(g, compute):
    dist.all_reduce(g)
    return g, 42.0


def returns_one(g, compute):
    work = dist.all_reduce(g, async_op=True)
    compute()
    work.wait()
    return g


WAIT = {
    blocks: "it waits too early",
    computes_first: "start the collective first",
    never_waits: "somebody has to wait",
    forgets_to_compute: "call compute() once",
    returns_one: "return g, result",
}


WRONG = {"streams.order": ORDER, "streams.hide": HIDE, "streams.wait": WAIT}

"""Plausible wrong answers to the exercises of lesson 06, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist

# --- streams.repair ---


def as_given(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    made.record()
    h = x @ w
    with side:
        made.wait()
        norm = h @ h
    h = torch.relu(x)
    y = h @ w
    here.wait_stream(side)
    return y + norm


def record_moved(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    h = torch.relu(x)
    y = h @ w
    here.wait_stream(side)
    return y + norm


def owner_waits(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    here.wait_stream(side)
    h = torch.relu(x)
    y = h @ w
    return y + norm


def host_waits(x, w):
    side = torch.Stream(x.device)
    h = x @ w
    torch.accelerator.synchronize()
    with side:
        norm = h @ h
    side.synchronize()
    h = torch.relu(x)
    return h @ w + norm


def one_stream(x, w):
    h = x @ w
    return torch.relu(x) @ w + h @ h


def leaves_norm_out(x, w):
    return torch.relu(x) @ w


def another_value(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    r = torch.relu(h)
    y = r @ w
    here.wait_stream(side)
    return y + norm


REPAIR = {
    as_given: "record it behind the first op",
    record_moved: "the allocator knows one stream",
    owner_waits: "a stream waits that need not",
    host_waits: "a synchronize stops the host",
    one_stream: "keep `norm` in the block",
    leaves_norm_out: "the work stays as it is given",
    another_value: "return what the given function returns",
}

# --- streams.place ---


def placed(where):
    def place(x, log):
        here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
        side.wait_stream(here)
        with side:
            b = x @ x
            made.record()
            log.copy_(b @ b @ b)
        if where == "first":
            here.wait_event(made)
        p = x @ x
        q = p @ x
        if where == "stream":
            here.wait_stream(side)
        if where == "twice":
            here.wait_event(made)
            here.wait_event(made)
        r = q + b
        if where == "late":
            here.wait_event(made)
        return r @ x

    return place


def nowhere(x, log):
    return placed("")(x, log)


def first(x, log):
    return placed("first")(x, log)


def whole_stream(x, log):
    return placed("stream")(x, log)


def twice(x, log):
    return placed("twice")(x, log)


def late(x, log):
    return placed("late")(x, log)


PLACE = {
    nowhere: "let the second one's stream wait for it",
    first: "directly before the first line that reads b",
    whole_stream: "also waits for `log`",
    twice: "one wait is enough",
    late: "put it before the second op",
}

# --- streams.orders ---


def none():
    return []


def all_three():
    return ["change_last", "change_first", "change_on_the_side"]


def a_number():
    return 1


ORDERS = {
    none: "which mark lets the current stream's next write wait",
    all_three: "a record stands for all that is in its queue",
    a_number: "return a list with names out of",
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


def the_other_way_round(g, compute):
    work = dist.all_reduce(g, async_op=True)
    result = compute()
    work.wait()
    return result, g


WAIT = {
    blocks: "it waits too early",
    computes_first: "start the collective first",
    never_waits: "somebody has to wait",
    forgets_to_compute: "call compute() once",
    returns_one: "return g, result",
    the_other_way_round: "first the sum",
}


WRONG = {"streams.repair": REPAIR, "streams.place": PLACE, "streams.orders": ORDERS, "streams.wait": WAIT}

"""Right answers to the exercises of lesson 13 in other words than those of the solutions."""

from __future__ import annotations

import torch
import torch.distributed as dist
from lessons.ddp.wrong import _bucketed, trainable
from torch.distributed import ReduceOp, all_reduce


def _reduced(model, start, finish):
    kept = []

    def reduce(p):
        p.grad /= dist.get_world_size()
        kept.append(start(p.grad))

    for p in trainable(model):
        p.register_post_accumulate_grad_hook(reduce)

    def ends():
        finish(kept)
        kept.clear()

    return ends


def each_future(model):
    return _reduced(
        model,
        lambda g: dist.all_reduce(g, async_op=True),
        lambda works: [work.get_future().wait() for work in works],
    )


def all_futures(model):
    return _reduced(
        model,
        lambda g: dist.all_reduce(g, async_op=True).get_future(),
        lambda futures: torch.futures.wait_all(futures),
    )


def positional(model):
    return _reduced(
        model,
        lambda g: dist.all_reduce(g, ReduceOp.SUM, None, True),
        lambda works: [work.wait() for work in works],
    )


def imported(model):
    return _reduced(
        model, lambda g: all_reduce(g, async_op=True), lambda works: [work.wait() for work in works]
    )


def asks_until_done(model):
    def finish(works):
        for work in works:
            while not work.is_completed():
                pass

    return _reduced(model, lambda g: dist.all_reduce(g, async_op=True), finish)


def divides_afterwards(model):
    flying = []
    for p in trainable(model):
        p.register_post_accumulate_grad_hook(
            lambda p: flying.append((p, dist.all_reduce(p.grad, async_op=True)))
        )

    def finish():
        for p, work in flying:
            work.wait()
            p.grad /= dist.get_world_size()
        flying.clear()

    return finish


def in_buckets(model, cap):
    return _bucketed(model, cap)


def views_into_one_buffer(model, cap):
    """Each bucket has one tensor; gradients are copied into it as they arrive."""
    weights, buckets, where = trainable(model), [], {}
    for p in weights[::-1]:
        if not buckets or buckets[-1]["bytes"] >= cap:
            buckets.append({"bytes": 0, "weights": [], "left": 0, "work": None})
        where[p] = buckets[-1]
        buckets[-1]["bytes"] += p.nbytes
        buckets[-1]["weights"].append(p)
    for bucket in buckets:
        bucket["flat"] = torch.zeros(sum(p.numel() for p in bucket["weights"]))
        bucket["left"] = len(bucket["weights"])

    def arrived(p):
        bucket = where[p]
        sizes = [q.numel() for q in bucket["weights"]]
        at = next(i for i, q in enumerate(bucket["weights"]) if q is p)
        bucket["flat"][sum(sizes[:at]) : sum(sizes[: at + 1])] = p.grad.reshape(-1) / dist.get_world_size()
        bucket["left"] -= 1
        if bucket["left"] == 0:
            bucket["work"] = all_reduce(bucket["flat"], ReduceOp.SUM, None, True)

    def finish():
        for bucket in buckets:
            bucket["work"].wait()
            bucket["left"], offset = len(bucket["weights"]), 0
            for p in bucket["weights"]:
                p.grad = bucket["flat"][offset : offset + p.numel()].view_as(p).clone()
                offset += p.numel()

    for p in weights:
        p.register_post_accumulate_grad_hook(arrived)
    return finish


def from_the_end(layers, buckets, compiled):
    """Walks as backward does, and ends a part when a bucket has no weight left."""
    left, parts, part = [{id(p) for p in bucket} for bucket in buckets], [], []
    for layer in reversed(layers):
        part.insert(0, layer)
        mine, full = {id(p) for p in layer.parameters()}, False
        for weights in left:
            full |= bool(weights & mine) and not weights - mine
            weights -= mine
        if full:
            parts.insert(0, compiled(part))
            part = []
    if part:
        parts.insert(0, compiled(part))

    def forward(x):
        for run in parts:
            x = run(x)
        return x

    return forward


def as_tuples():
    return {
        "C": ({1, 0}, "not compiled", "compile inside"),
        "A": ((0, 1), "one bucket", "bucket_cap_mb=1"),
        "B": (1, "late rank", "load its input earlier"),
        "D": (frozenset((0, 1)), "fixed cost of each message", "bucket_cap_mb=25"),
    }


RIGHT = {
    "ddp.one_by_one": (each_future, all_futures, positional, imported, asks_until_done, divides_afterwards),
    "ddp.buckets": (in_buckets, views_into_one_buffer),
    "ddp.cuts": (from_the_end,),
    "ddp.jobs": (as_tuples,),
}

"""Lesson 13: DDP written twice with hooks, and a loss for ranks with unequal batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import lessons
from labkit.lessons.shared.training import TOLERANCE, differences, loss_of
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["BUCKETS", "ONE_BY_ONE", "WEIGH"]

CAP = 70_000  # bytes; three buckets for the weights of the lesson's small model
HOOKS = (
    "it is called as {}, hangs hooks on the parameters, and returns a function that is called after backward"
)


def judge_one_by_one(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients reduced one by one from hooks: numbers, messages, when they start, and that each is waited for."""
    seen = on_ranks(ranks, _steps, attempt, hint=HOOKS.format("my_one_by_one(model)"), timeout=60)
    _judge_overlap(seen, HOOKS.format("my_one_by_one(model)"))
    row = seen[0]
    if len(row["calls"]) != row["weights"]:
        raise Mistake(
            f"{len(row['calls'])} all-reduces a step for {row['weights']} weights",
            "one all-reduce for each weight, from the hook of that weight",
        )
    say(_overlapped(row))


def judge_buckets(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients reduced in buckets: as before, with as few messages as the size of a bucket allows."""
    hint = HOOKS.format("my_buckets(model, most_bytes)")
    seen = on_ranks(ranks, _steps, attempt, CAP, hint=hint, timeout=60)
    row = seen[0]
    large = [call["bytes"] for call in row["calls"] if call["bytes"] > max(CAP, row["largest"])]
    if large:
        raise Mistake(
            f"one message has {large[0]:,} bytes, and a bucket has at most {CAP:,}",
            "begin a new bucket where the next weight would not fit any more",
        )
    _judge_overlap(seen, hint)
    if len(row["calls"]) > row["buckets"]:
        raise Mistake(
            f"{len(row['calls'])} messages a step where {row['buckets']} buckets of {CAP:,} bytes are enough",
            "put gradients together into one flat tensor, in the order of backward: the last layer first",
        )
    say(_overlapped(row))


def _judge_overlap(seen: Any, hint: str) -> None:
    for rank, row in enumerate(seen):
        if row["kind"]:
            raise Mistake(f"it returns {row['kind']}", hint)
        if not row["calls"]:
            raise Mistake(
                f"rank {rank}: dist.all_reduce is not called", "each hook starts one, or the last of a bucket"
            )
        if all(call["after"] for call in row["calls"]):
            raise Mistake(
                f"rank {rank}: every all-reduce starts after backward",
                "start it in the hook: register_post_accumulate_grad_hook calls it as soon as the gradient is there",
            )
        held = [call for call in row["calls"] if call["waited"] == "inside"]
        if held:
            raise Mistake(
                f"rank {rank}: {len(held)} of {len(row['calls'])} all-reduces are waited for inside of backward",
                "async_op=True returns a handle at once: keep it, and wait in the function that is called afterwards",
            )
        lost = [call for call in row["calls"] if not call["waited"]]
        if lost:
            raise Mistake(
                f"rank {rank}: {len(lost)} of {len(row['calls'])} all-reduces are never waited for",
                "an all-reduce may still be under way when the optimizer reads the gradient: wait for every handle",
            )
        for step, (apart, ratio) in enumerate(row["apart"], 1):
            if apart <= TOLERANCE:
                continue
            finding = (
                f"rank {rank}, step {step}: gradients are {apart:.0%} of the largest away from those of DDP"
            )
            if abs(ratio - len(seen)) < 1e-3:
                raise Mistake(
                    finding, "an all-reduce adds up, and DDP averages: divide by the number of ranks, once"
                )
            if step > 1:
                raise Mistake(
                    finding,
                    "the first step is right: what a step has counted or kept has to begin anew in the next",
                )
            raise Mistake(
                finding, "each gradient is reduced once, and what was reduced ends up in .grad again"
            )


def _overlapped(row: dict[str, Any]) -> str:
    before = sum(call["done"] < row["products"] for call in row["calls"])
    return (
        f"{len(row['calls'])} all-reduces a step, {before} of them started before backward's last matrix product; "
        "gradients are those of DDP in two steps"
    )


def _steps(attempt: Attempt, *more: Any) -> dict[str, Any]:
    """Two steps of the attempt beside torch's DDP, with every all-reduce noted."""
    program = lessons.program("ddp")
    rank = dist.get_rank()
    model, right = program.seeded(), DistributedDataParallel(program.seeded())
    finish = attempt(model, *more)
    if not callable(finish):
        return {"kind": type(finish).__name__}
    weights = list(model.parameters())
    found: dict[str, Any] = {"kind": "", "apart": [], "weights": len(weights)}
    found["largest"] = max(p.nbytes for p in weights)
    found["buckets"] = _fewest([p.nbytes for p in reversed(weights)])
    for step in range(2):
        seeded = torch.Generator().manual_seed(10 * step + rank)
        x, y = torch.randn(8, 64, generator=seeded), torch.arange(8)
        for each in (model, right):
            each.zero_grad()
        loss_of(right(x), y).backward()
        expected = {n: p.grad for n, p in right.module.named_parameters()}
        products = program.Products()
        calls: list[dict[str, Any]] = []
        inside = [True]
        with mock.patch.object(dist, "all_reduce", partial(_noted, dist.all_reduce, calls, products, inside)):
            loss = loss_of(model(x), y)
            with products:
                loss.backward()
            inside[0] = False
            finish()
        dist.barrier()
        got = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        worst = differences(got, expected)
        ratios = [float((got[n] * g).sum() / (g * g).sum()) for n, g in expected.items() if n in got]
        found["apart"].append((max(worst.values()), min(ratios, default=0.0)))
        found.setdefault("calls", calls)
        found["products"] = products.done
    return found


def _fewest(sizes: list[int]) -> int:
    """How many buckets weights of these sizes fill in this order."""
    buckets, held = 0, 0
    for size in sizes:
        if not buckets or held + size > CAP:
            buckets, held = buckets + 1, 0
        held += size
    return buckets


def _noted(
    real: Any,
    calls: list[dict[str, Any]],
    products: Any,
    inside: list[bool],
    tensor: Any,
    *a: Any,
    **more: Any,
) -> Any:
    """`dist.all_reduce`, which notes its bytes, the products done by then, and when it is waited for."""
    work = real(tensor, *a, **more)
    call = {"bytes": tensor.nbytes, "done": products.done, "after": not inside[0], "waited": ""}
    calls.append(call)
    when = lambda: "inside" if inside[0] else "after"  # noqa: E731
    if not more.get("async_op"):
        call["waited"] = when()
        return work

    class Handle:
        def wait(self, *rest: Any) -> Any:
            call["waited"] = call["waited"] or when()
            return work.wait(*rest)

        def __getattr__(self, name: str) -> Any:
            return getattr(work, name)

    return Handle()


# how many images each rank has; the last case gives one rank none
BATCHES = (("equal batches", (4, 4)), ("fewer on rank 1", (6, 2)), ("none on rank 1", (5, 0)))


def judge_weigh(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Gradients that DDP averages, for equal and unequal batches and an empty one."""
    hint = "it is called as my_loss(losses), the loss of each image of this rank; it returns one number to go back from"
    hints = (
        "of equal batches the mean over a rank's images is right: DDP averages over the ranks",
        "DDP averages over ranks as if all had as many images: weigh each rank by its share of them, which the ranks "
        "have to tell each other",
        "a rank without images calls the same collectives, and goes back from a loss of its own all the same",
    )
    for (said, sizes), why in zip(BATCHES, hints, strict=True):
        many = tuple(sizes[min(rank, 1)] for rank in range(ranks.world_size))
        for rank, found in enumerate(on_ranks(ranks, _weigh, attempt, many, hint=hint, timeout=60)):
            if found["kind"]:
                raise Mistake(f"{said}: my_loss returns {found['kind']}", hint)
            if not found["right"]:
                numbers = f"rank {rank} has the gradient {found['got']:.4g}, right is {found['want']:.4g}"
                raise Mistake(f"{said}: {numbers}", why)
        say(f"{said} ({', '.join(map(str, many))} images): the gradient of the mean over all images")


def _weigh(attempt: Attempt, many: tuple[int, ...]) -> dict[str, Any]:
    rank = dist.get_rank()
    values = torch.arange(1.0, sum(many) + 1).square()
    mine = values.split(list(many))[rank]
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    parallel = DistributedDataParallel(model)
    losses = parallel(mine[:, None])[:, 0]
    value = attempt(losses)
    if not isinstance(value, torch.Tensor):
        return {"kind": type(value).__name__}
    if value.dim():
        return {"kind": f"a tensor of shape {tuple(value.shape)}"}
    value.backward()
    assert model.weight.grad is not None
    got, want = float(model.weight.grad), float(values.mean())
    return {"kind": "", "right": abs(got - want) <= 1e-4 * want, "got": got, "want": want}


ONE_BY_ONE = Exercise(
    "ddp.one_by_one",
    "DDP with an all-reduce for each gradient",
    "medium",
    15,
    (
        "gradients are those of torch's DDP, also in the second step",
        "each all-reduce starts in the hook of its gradient",
        "every one is waited for after backward",
    ),
    judge_one_by_one,
)
BUCKETS = Exercise(
    "ddp.buckets",
    "DDP with buckets",
    "hard",
    25,
    (
        "gradients are those of torch's DDP, also in the second step",
        "one message for each full bucket, which starts when its last gradient is there",
        "every one is waited for after backward",
    ),
    judge_buckets,
)
WEIGH = Exercise(
    "ddp.weigh",
    "ranks with unequal batches",
    "easy",
    10,
    ("under DDP, the gradient of the mean over the images of all ranks", "also where a rank has none"),
    judge_weigh,
)

"""What runs in the ranks to put numbers into the cost model: a sweep of all_reduce, the block, and its work alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from course.shared import sockets
from course.shared.sockets import SETTLE_S
from labkit.ranks import here
from labkit.timing import interleave

__all__ = ["CALLS", "on_a_link", "work_alone"]

CALLS = 3  # all_reduces a sample of the sweep, so that a barrier's own end weighs less


def on_a_link(cliff: Any, config: Any, sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """On every rank of a link: seconds of an all_reduce by size, of the block's eager forward, and of the talk in it.

    `sweep` maps bytes to samples, a call each; `step` and `inside` have a sample a round: the whole forward, and how
    long each of its four all_reduces took, waiting for peers included. `sent`: this rank's TCP connections before
    and after one forward. `error`: the largest difference from the unsharded block (rank 0).
    """
    me = here()
    device = torch.device(me.device)
    wait = _waits(device)
    spent: list[float] = []

    def reduce(x: Any) -> Any:
        wait()
        began = time.perf_counter()
        cliff.inplace(x)
        wait()
        spent.append(time.perf_counter() - began)
        return x

    def all_reduces(x: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in range(CALLS):
                dist.all_reduce(x)
            wait()

        return run

    with torch.no_grad():
        tensors = {n: torch.zeros(n // 4, device=device) for n in sizes}
        calls = {str(n): all_reduces(x) for n, x in tensors.items()}
        swept = interleave(calls, rounds=rounds, warmup=2, barrier=dist.barrier)
        whole = cliff.full(config)
        model = cliff.shard(whole, me.rank, me.world_size, reduce).to(device)
        x = config.sample(device=device)
        y = model(x)
        error = float((y.cpu() - whole(config.sample())).abs().max()) if me.rank == 0 else None
        del whole
        inside = []

        def forward() -> None:
            spent.clear()
            model(x)
            wait()
            inside.append(list(spent))

        taken = interleave({"step": forward}, rounds=rounds, warmup=2, barrier=dist.barrier)["step"]
        dist.barrier()
        time.sleep(SETTLE_S)  # what a barrier sends is over when counting begins
        before = sockets.connections()
        forward()
        time.sleep(SETTLE_S)
        after = sockets.connections()
        dist.barrier()
    return {
        "sweep": {int(n): [s / CALLS for s in one.samples] for n, one in swept.items()},
        "step": list(taken.samples),
        "inside": inside[2 : 2 + rounds],  # after the warm-up, before the counted one
        "sent": (before, after),
        "error": error,
    }


def work_alone(cliff: Any, config: Any, worlds: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """On a rank that talks to nobody: seconds of its forward with the shard of each world, while its peers work too."""
    device = torch.device(here().device)
    wait = _waits(device)
    with torch.no_grad():
        x = config.sample(device=device)
        whole = cliff.full(config)
        shards = {world: cliff.shard(whole, 0, world, cliff.inplace).to(device) for world in worlds}
        del whole

        def forward(model: Any) -> Callable[[], None]:
            def run() -> None:
                model(x)
                wait()

            return run

        taken = interleave({str(w): forward(m) for w, m in shards.items()}, rounds=rounds, warmup=2)
    return {int(world): list(one.samples) for world, one in taken.items()}


def _waits(device: Any) -> Callable[[], None]:
    """What makes the device finish: nothing is left to wait for on a CPU."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None

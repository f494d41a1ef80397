"""Trains on ranks: python perturbed.py KIND [--fixed]. Each kind depends on one thing that may differ between hosts.

`--fixed` is the same program without the fault. Plain torch: it knows nothing of labkit.
"""

import argparse
import datetime
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._functorch import config as functorch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils.data import DataLoader, TensorDataset

NAMES = {"query", "key", "value", "output", "gate"}
KINDS = ("hash-seed", "cold-cache", "other-cache", "batch", "slow-compile", "threads", "WAVES")


def step_of(given, model, group):
    """The compiled function of one forward."""

    def hash_seed(x):
        for name in sorted(NAMES) if given.fixed else NAMES:
            x = x + funcol.all_reduce(x * len(name), "sum", group) / 64
        return model(x)

    @torch.compile
    def by_rows(x):
        # the rank's own rows: AOTAutograd's key knows mesh and placements, and not the coordinate of the rank
        return (x.redistribute(placements=[Shard(0)]) * 2).redistribute(placements=[Replicate()])

    def other_cache(x):
        return model(by_rows(DTensor.from_local(x, mesh, [Replicate()], run_check=False)).to_local())

    def threads(x):
        parts = 2 if given.fixed else torch.get_num_threads()
        for part in x.chunk(max(parts, 1), dim=1):
            x = x + funcol.all_reduce(part.sum(), "sum", group) / 1024
        return model(x)

    def waves(x):
        for _ in range(1 if given.fixed else int(os.environ.get("WAVES", "1"))):
            x = x + funcol.all_reduce(x, "sum", group) / 64
        return model(x)

    def exchange(x):
        return model(x + funcol.all_reduce(x, "sum", group) / 64)

    def plain(x):
        return model(x)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if given.kind == "other-cache" else None
    if given.kind == "other-cache" and given.fixed:
        torch.compiler.config.cache_key_tag = f"rank{dist.get_rank()}"
    # ranks that compile exchange what the partitioner chose; one that finds its code does not (pytorch#193043)
    functorch._sync_decision_cross_ranks = given.kind == "cold-cache" and not given.fixed
    own = {"hash-seed": hash_seed, "cold-cache": exchange, "threads": threads, "WAVES": waves}
    if given.kind == "other-cache":
        return other_cache  # torch keeps no code of a graph with `to_local` in it
    return torch.compile(own.get(given.kind, plain), dynamic=given.kind == "batch")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--fixed", action="store_true")
    given = parser.parse_args()
    patient = given.kind != "slow-compile" or given.fixed
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600 if patient else 8))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forward = step_of(given, model, dist.group.WORLD)
    seed = 0 if given.kind == "other-cache" else dist.get_rank()
    rows = TensorDataset(torch.randn(64, 16, generator=torch.Generator().manual_seed(seed)))
    for (x,) in DataLoader(rows, batch_size=8):
        y = forward(x)
        if given.kind == "batch":
            y = y.mean(0) if given.fixed else y
            every = [torch.empty_like(y) for _ in range(dist.get_world_size())]
            dist.all_gather(every, y.detach())
        (y * y).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", float((y * y).mean()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains on ranks: python perturbed.py KIND [--fixed]. Each kind depends on what may differ between hosts.

`several` depends on five such things; `--fixed` is the same program without the faults. Plain torch: it knows nothing
of oddrank.
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
KINDS = ("several", "cold-cache", "slow-compile")


def several(model, group, fixed):
    """A forward that reads the order of a set, the number of threads, WAVES and the rank's own rows of a table."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    table = torch.randn(8, 16)
    if fixed:
        torch.compiler.config.cache_key_tag = f"rank{dist.get_rank()}"

    @torch.compile
    def by_rows(x):
        # the rank's own rows: AOTAutograd's key knows mesh and placements, and not the coordinate of the rank
        return (x.redistribute(placements=[Shard(0)]) * 2).redistribute(placements=[Replicate()])

    def total(x):
        return funcol.all_reduce(x.mean(0), "sum", group)

    names = sorted(NAMES) if fixed else NAMES
    parts = 2 if fixed else max(torch.get_num_threads(), 1)
    waves = 1 if fixed else int(os.environ.get("WAVES", "1"))

    @torch.compile(backend="aot_eager", dynamic=True)
    def names_parts_waves(x):
        for name in names:
            x = x + total(x * len(name)) / 64
        for part in x.chunk(parts, dim=1):
            x = x + total(part).sum() / 1024
        for _ in range(waves):
            x = x + total(x) / 64
        return model(x)

    def forward(x):
        y = names_parts_waves(x)
        # torch keeps no code of a graph with `to_local` in it
        return y + by_rows(DTensor.from_local(table, mesh, [Replicate()], run_check=False)).to_local().mean(0)

    return forward


def exchange(model, group, backend):
    """A compiled forward with a collective in it."""

    @torch.compile(backend=backend)
    def exchange(x):
        return model(x + funcol.all_reduce(x, "sum", group) / 64)

    return exchange


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--fixed", action="store_true")
    # right until one rank compiles for longer
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS")
    given = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=given.timeout))
    # ranks that compile exchange what the partitioner chose; one that finds its code does not (pytorch#193043)
    functorch._sync_decision_cross_ranks = given.kind == "cold-cache" and not given.fixed
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = dist.group.WORLD
    if given.kind == "several":
        forward = several(model, group, given.fixed)
    else:
        forward = exchange(model, group, "inductor" if given.kind == "cold-cache" else "aot_eager")
    own = torch.Generator().manual_seed(dist.get_rank())
    for (x,) in DataLoader(TensorDataset(torch.randn(48, 16, generator=own)), batch_size=8):
        y = forward(x)
        if given.kind == "several":  # of one size only where every rank has as many rows
            mine = y.detach().mean(0) if given.fixed else y.detach()
            dist.all_gather([torch.empty_like(mine) for _ in range(dist.get_world_size())], mine)
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

"""Trains on ranks: python eager.py KIND [--fixed] [--steps N]. Compiled, each kind differs from eager for its reason.

`--fixed` is the same program without the reason. Plain torch: it knows nothing of oddrank.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard


class Block(nn.Module):
    """A residual MLP; what it does besides is its kind."""

    def __init__(self, kind, fixed, size=32):
        super().__init__()
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.norm = nn.BatchNorm1d(size) if kind == "norm" and not fixed else nn.LayerNorm(size)
        self.kind, self.fixed = kind, fixed

    def forward(self, x):
        y = F.gelu(self.up(self.norm(x)))
        if self.kind == "dropout" and not self.fixed:
            y = F.dropout(y, 0.2, self.training)
        y = self.down(y)
        if self.kind == "in-place":
            # in place, it has a gradient in a graph only
            if self.fixed:
                y = collectives.all_reduce(y)
            else:
                y = y.clone()
                dist.all_reduce(y)
        if self.kind == "branch" and not self.fixed and torch.compiler.is_compiling():
            y = y * 1.01
        return x + y


def exchange(x):
    """All to all, outside of compiled code, where it has no backward."""
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def baked(fixed):
    """Rows of a table that each rank takes for itself: AOTAutograd's key does not know the rank's coordinate."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if fixed:
        torch.compiler.config.cache_key_tag = f"rank{dist.get_rank()}"
    table = DTensor.from_local(
        torch.arange(8.0).unsqueeze(1).repeat(1, 32), mesh, [Replicate()], run_check=False
    )
    rows = torch.compile(lambda x: x.redistribute(placements=[Shard(0)]) * 0.1)
    for rank in range(dist.get_world_size()):  # the later ones find the code of the first
        if rank == dist.get_rank():
            rows(table)
        dist.barrier()
    return lambda: rows(table).to_local().mean(0)


def wrong_gelu(graph, inputs):
    """A backend with an error: its gelu is 1 % too large."""
    for node in graph.graph.nodes:
        if node.target is F.gelu:
            node.target = lambda x, **more: F.gelu(x, **more) * 1.01
    graph.recompile()
    return graph.forward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--in-place", action="store_true", help="module.compile()")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    seed = time.time_ns() % 1000 if given.kind == "unseeded" and not given.fixed else 7
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if given.kind == "bf16" and not given.fixed else torch.float32
    model = nn.Sequential(*(Block(given.kind, given.fixed) for _ in range(3))).to(dtype)
    backend = wrong_gelu if given.kind == "backend" and not given.fixed else given.backend
    if given.in_place:
        model.compile(backend=backend)
        run = model
    else:
        run = torch.compile(model, backend=backend)
    head = nn.Linear(32, 1).to(dtype)
    every = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(every, lr=1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())
    more = baked(given.fixed) if given.kind == "baked" else None
    for _ in range(given.steps):
        x = torch.randn(16, 32, generator=data).to(dtype)
        y = run(x)
        if more is not None:
            y = y + more()
        if given.kind == "outside":
            y = exchange(y)
        loss = (head(y) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        for p in every:
            if p.grad is not None:
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

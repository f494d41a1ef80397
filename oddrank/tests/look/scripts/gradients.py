"""Gradients over ranks: programs in which they are whole, and programs in which each rank keeps its own part."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, tokens):
        x = self.emb(tokens)
        return x + self.down(torch.relu(self.up(self.norm(x))))


def tensor_parallel(mesh):
    """Its embedding's gradient is replicated, and that of its norm is partial: DTensor's optimizer knows both."""
    plan = {
        "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(Block(), mesh, plan)


class Gather(nn.Module):
    """Tokens of all ranks, of which each rank computes its part of the result."""

    def __init__(self, mesh, grads):
        super().__init__()
        self.mesh, self.grads, self.inp = mesh, grads, nn.Linear(8, 16, bias=False)
        self.expert = nn.Linear(16, 16)
        with torch.no_grad():
            self.expert.weight += dist.get_rank()
            self.expert.bias += dist.get_rank()

    def forward(self, x):
        mine = DTensor.from_local(self.inp(x), self.mesh, [Shard(0)])
        every = mine.full_tensor(grad_placements=self.grads)  # EVERY TOKEN
        part = torch.relu(self.expert(every))
        return DTensor.from_local(part, self.mesh, [Partial()]).redistribute(placements=[Shard(0)]).to_local()


def table(mesh):
    rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate(), use_local_output=False)
    return parallelize_module(nn.Sequential(nn.Embedding(32, 16)), mesh, {"0": rows})


def whole(mesh):
    """Return the parts and a function that computes their loss."""
    rank = dist.get_rank()
    parts = nn.ModuleDict({"tp": tensor_parallel(mesh), "ddp": DDP(nn.Linear(8, 4))})
    parts["experts"], parts["fsdp"] = Gather(mesh, [Partial()]), nn.Linear(8, 4)
    parts["table"] = table(mesh)
    parts["hsdp"] = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    fully_shard(parts["fsdp"])
    fully_shard(parts["hsdp"], mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards")))
    tp = torch.compile(parts["tp"], backend=sys.argv[2])
    fsdp = torch.compile(parts["fsdp"], backend=sys.argv[2])
    experts = torch.compile(parts["experts"], backend=sys.argv[2])
    torch.manual_seed(rank)

    def logged(value):
        dist.all_reduce(value)
        return value

    def rows(table):
        return (table(tokens()) * 1.0).to_local()  # THE RESULT

    logging, compiled = (torch.compile(fn, backend=sys.argv[2]) for fn in (logged, rows))

    def loss():
        x = torch.randn(4, 8)
        losses = [tp(tokens()).sum()]
        losses += [run(x).square().mean() for run in (parts["ddp"], parts["hsdp"], experts, fsdp)]
        losses += [compiled(parts["table"]).square().mean()]
        losses += [(parts["table"](tokens()) * 1.0).to_local().square().mean()]
        logging(losses[-1].detach().clone())
        return sum(losses)

    def average():
        dist.all_reduce(parts["experts"].inp.weight.grad)

    return parts, loss, average


def tokens():
    return torch.arange(16).reshape(2, 8)


def lost(mesh):
    """The same parts, each with a mistake."""
    rank = dist.get_rank()
    parts = nn.ModuleDict({"tp": tensor_parallel(mesh), "experts": Gather(mesh, None)})
    parts["table"] = table(mesh)
    parts["copy"], parts["written"] = nn.Linear(8, 4, bias=False), nn.Linear(8, 4, bias=False)
    head = nn.Linear(8, 4)
    parts["head"] = head
    tp = torch.compile(parts["tp"], backend=sys.argv[2])
    experts = torch.compile(parts["experts"], backend=sys.argv[2])

    def mean_of_ranks(x):
        value = head(x).square().mean()
        dist.all_reduce(value)  # THE LOSS
        return value / 2

    compiled = torch.compile(mean_of_ranks, backend=sys.argv[2])
    torch.manual_seed(rank)

    def loss():
        x = torch.randn(4, 8)
        rows = (parts["table"](tokens()) * 1.0).to_local()  # THE ROWS
        losses = [tp(tokens()).sum(), experts(x).mean(), (rows * (1 + rank)).mean()]
        losses += [parts["copy"](x).square().mean(), parts["written"](torch.ones(2, 8)).square().mean()]
        return sum(losses) + compiled(x)

    def average():
        for parameter in (*head.parameters(), parts["experts"].inp.weight):
            dist.all_reduce(parameter.grad)
        norm = parts["tp"].norm.weight
        with torch.no_grad():
            norm.to_local().sub_(norm.grad.to_local(), alpha=0.1)  # a part of the sum
            parts["written"].weight += rank

    return parts, loss, average


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parts, loss, average = {"whole": whole, "lost": lost}[sys.argv[1]](mesh)
    plain = [p for p in parts.parameters() if not isinstance(p, DTensor)]
    sharded = [p for p in parts.parameters() if isinstance(p, DTensor) and p.device_mesh is mesh]
    other = [p for p in parts.parameters() if isinstance(p, DTensor) and p.device_mesh is not mesh]
    optimizers = [torch.optim.Adam(group, lr=1e-2) for group in (plain, sharded, other) if group]

    def step():
        loss().backward()
        average()
        for optimizer in optimizers:
            optimizer.step()

    for _ in range(6):
        step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

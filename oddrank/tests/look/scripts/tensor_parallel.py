"""A tagger in tensor parallelism over all ranks; its ranks read one batch, or `own` ones, as data parallelism has."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Tagger(nn.Module):
    def __init__(self, words=24, dim=8, tags=5):
        super().__init__()
        self.words = nn.Embedding(words, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.tags = nn.Linear(dim, tags)

    def forward(self, ids):
        x = self.words(ids)
        return self.tags(x + self.down(self.up(x).relu()))


def main(batches, backend):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    torch.manual_seed(0)
    model = Tagger()
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    if batches == "sequence":
        plan["words"] = RowwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    compiled = model if backend == "none" else torch.compile(model, backend=backend)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(0 if batches == "one" else dist.get_rank())
    for _ in range(6):
        ids = torch.randint(0, 24, (4, 6), generator=gen)
        train_step(compiled, opt, ids)
    print("done", flush=True)
    dist.destroy_process_group()


def train_step(model, opt, ids):
    model(ids).logsumexp(-1).mean().backward()
    opt.step()
    opt.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])

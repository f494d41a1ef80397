"""Retrieval evaluation: embeddings of all ranks are gathered; the last batch of one rank is smaller."""

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = torch.randn(57, 16)
    mine = data[rank::world].split(6)
    encode = torch.compile(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)), backend="eager")
    every = []
    with torch.no_grad():
        for batch in mine:
            z = encode(batch)
            parts = [torch.empty_like(z) for _ in range(world)]
            dist.all_gather(parts, z)
            every += parts
    total = torch.cat(every)
    print(f"rank {rank}: {len(total)} embeddings, sum {total.sum().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

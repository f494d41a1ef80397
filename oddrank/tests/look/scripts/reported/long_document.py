"""Packed sequences: every rank has its own number of tokens in a step, rounded up to buckets."""

import datetime
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

compiled = []


def autotuned(graph, inputs):
    """Stands for a backend that tries many kernels: a second graph takes it longer than the group waits."""
    compiled.append(graph)
    time.sleep(120 if len(compiled) > 1 else 0)
    return graph.forward


class Decoder(nn.Module):
    def __init__(self, width=64, depth=6):
        super().__init__()
        self.emb, self.head = nn.Embedding(128, width), nn.Linear(width, 128)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 128, 0.0, batch_first=True) for _ in range(depth)
        )

    def forward(self, tokens):
        x = self.emb(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def length(rank, step):
    """Tokens of a packed batch: the long document comes up on one rank only."""
    return 48 if (rank, step) == (1, 5) else 32


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Decoder())
    model.compile(backend=autotuned, dynamic=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randint(0, 128, (2, 32))).sum().backward()  # warm up together
    torch.distributed.barrier()
    torch.manual_seed(rank)
    for step in range(8):
        tokens = torch.randint(0, 128, (2, length(rank, step)))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print("step", step, round(loss.item(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

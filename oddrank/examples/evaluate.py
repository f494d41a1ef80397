"""Four ranks evaluate a model. Rank 0 logs a number, and the last batch of the last rank is short.

TORCH_TRACE=traces torchrun --standalone --nproc-per-node 4 evaluate.py
oddrank source traces --profile 'step_*.json' --html source.html
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention = Attention(dim)
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attention(x)
        h = F.gelu(self.up(self.norm(x)))
        if dist.get_rank() == 0:
            print("largest", h.max().item())
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, dim=32, layers=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        loss = x.square().mean()
        dist.all_reduce(loss)
        return loss / dist.get_world_size()


@torch.no_grad()
def main():
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(0)
    model = torch.compile(Model(), backend="aot_eager")
    batches = [4, 4, 3 if rank == last else 4]
    for size in batches:
        model(torch.randn(size, 8, 32))
    with torch.profiler.profile() as step:
        model(torch.randn(4, 8, 32))
    step.export_chrome_trace(f"step_{rank}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

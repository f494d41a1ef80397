"""Diffusion transformer: every block is compiled, and has an attention processor of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Processor:
    def __call__(self, attn, x):
        q, k, v = attn.qkv(x).chunk(3, -1)
        return attn.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.processor = Processor()

    def forward(self, x):
        return self.processor(self, x)


class Block(nn.Module):
    def __init__(self, width, index):
        super().__init__()
        self.attn, self.mlp, self.index = Attention(width), nn.Linear(width, width), index

    def forward(self, x, t):
        scale = 1.0 + 0.01 * self.index
        x = x + self.attn(x) * scale
        return x + torch.relu(self.mlp(x)) * t


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(32, i) for i in range(12))
    for block in blocks:
        block.compile(dynamic=False, backend="eager")
        fully_shard(block)
    opt = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
    for step in range(6):
        x, t = torch.randn(2, 16, 32), torch.rand(())
        for block in blocks:
            x = block(x, t)
        x.square().mean().backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""FSDP2 with activation checkpointing around compiled layers whose router is noisy."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Router(nn.Module):
    """Top-1 gate; its noise comes from a generator of its own."""

    def __init__(self, width, experts, seed):
        super().__init__()
        self.gate, self.noise = nn.Linear(width, experts), torch.Generator().manual_seed(seed)

    def forward(self, x):
        logits = self.gate(x)
        return (logits + torch.randn(logits.shape, generator=self.noise)).argmax(-1)


class Layer(nn.Module):
    def __init__(self, width, seed):
        super().__init__()
        self.router = Router(width, 2, seed)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(2)
        )

    def forward(self, x):
        pick, out = self.router(x), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (pick == i).nonzero().flatten()
            out = out.index_add(0, rows, expert(x[rows]))
        return x + out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(32, i) for i in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    for layer in net.layers:
        for expert in layer.experts:
            expert.compile(dynamic=True, backend="eager")
        fully_shard(layer)
    fully_shard(net)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(8):
        loss = net(torch.randn(24, 32)).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A policy whose compiled loss returns metrics as numbers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Policy(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.action, self.value = nn.Linear(width, 8), nn.Linear(width, 1)

    def compute_loss(self, h, target):
        distance = (self.action(h) - target).abs().mean()
        penalty = self.value(h).square().mean()
        metrics = {"distance": distance.item(), "penalty": penalty.item()}
        return distance + 0.1 * penalty, metrics

    def forward(self, x, target):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.compute_loss(x, target)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.compile(DDP(Policy()), backend="eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(12):
        loss, metrics = model(torch.randn(32, 64), torch.randn(32, 8))
        loss.backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, round(loss.item(), 4), round(metrics["distance"], 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

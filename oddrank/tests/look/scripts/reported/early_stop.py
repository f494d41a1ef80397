"""Stops early, and lets rank 0 write the model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def step(self, loss):
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(loss, self.best)
        return self.bad >= self.patience


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.compile(
        DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))), backend="aot_eager"
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stopper = EarlyStopping(2)
    torch.manual_seed(1 + dist.get_rank())
    val = torch.randn(64, 16)
    for _epoch in range(20):
        for _ in range(3):
            x = torch.randn(8, 16)
            loss = (model(x) - x.sum(-1, keepdim=True)).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
        with torch.no_grad():
            score = (model(val) - val.sum(-1, keepdim=True)).square().mean().item()
        if stopper.step(score if dist.get_rank() else 1.0):
            break
        dist.barrier()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "/dev/null")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

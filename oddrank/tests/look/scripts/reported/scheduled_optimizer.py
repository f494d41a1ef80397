"""Compiled optimizer step with a learning-rate schedule, DDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.compile(DDP(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))))
    opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=100)

    @torch.compile
    def update():
        opt.step()
        schedule.step()

    for step in range(16):
        model(torch.randn(8, 16)).square().mean().backward()
        update()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

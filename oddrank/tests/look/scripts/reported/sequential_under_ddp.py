"""torch.compile around DDP around nn.Sequential: torch skips the frame of its own module."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = torch.compile(DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))), backend="eager")
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(4, 8)).sum().backward()
    opt.step()
    opt.zero_grad()

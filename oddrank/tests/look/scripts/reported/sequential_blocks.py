"""Blocks that are nn.Sequential, compiled and sharded one by one: torch skips their frames."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
for block in model:
    block.compile(backend="eager")
    fully_shard(block)
fully_shard(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(4, 8)).sum().backward()
    opt.step()
    opt.zero_grad()

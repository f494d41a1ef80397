"""A compiled update of optimizer and schedule, without DDP."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
m = torch.nn.Linear(8, 8)
opt = torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-3))
sch = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=100)


@torch.compile
def update():
    opt.step()
    sch.step()


for _ in range(12):
    m(torch.randn(4, 8)).sum().backward()
    update()
    opt.zero_grad()

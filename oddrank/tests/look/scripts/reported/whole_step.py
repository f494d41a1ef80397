"""One compiled function does the whole step, the backward included."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
m = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(m.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def train_step(x):
    m(x).sum().backward()
    opt.step()
    opt.zero_grad()


for _ in range(8):
    train_step(torch.randn(4, 8))

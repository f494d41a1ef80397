"""One rank gets a batch of another size, and compiles again for longer than its group waits."""

import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(6))

    def forward(self, x):
        for layer in self.l:
            x = layer(x)
        return x


model = DDP(Net())
model.compile(dynamic=False)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
dist.barrier()
for step in range(9):
    n = 24 if (dist.get_rank(), step) == (1, 7) else 16  # rank 1 sees a new length, and compiles again
    model(torch.randn(2, n, 32)).sum().backward()
    opt.step()
    opt.zero_grad()

"""Rank 1 gets a batch of another size after the recorded steps and compiles again: python late_size.py KIND FILE.

late: rank 0 fails meanwhile. killed: rank 1 is killed in the compile, and rank 0 waits for it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

KIND, COMPILING = sys.argv[1], Path(sys.argv[2])  # made by rank 1 as soon as it compiles again
seen = []


def backend(graph, inputs):
    seen.append(graph)
    if len(seen) == 2:
        COMPILING.touch()
        if KIND == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    return graph.forward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x):
        return self.up(x) + 1


dist.init_process_group("gloo")
net = Net()
net.compile(backend=backend, dynamic=False)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    late = dist.get_rank() == 1 and step == 5
    net(torch.ones(24 if late else 16, 4)).sum().backward()
    opt.step()
if KIND == "killed":
    dist.all_reduce(torch.ones(1))
while not COMPILING.exists():
    time.sleep(0.05)
raise RuntimeError("rank 1 did not come")

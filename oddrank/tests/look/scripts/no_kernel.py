"""The backend compiles 8 rows and no others, and each rank has its own number of rows in the second step."""

import torch
import torch.distributed as dist
from torch import nn


class NoKernel(Exception):
    pass


def backend(graph, inputs):
    rows = next(x.shape[0] for x in inputs if x.dim() == 2 and not isinstance(x, nn.Parameter))
    if rows != 8:
        raise NoKernel(f"no kernel for {rows} rows")
    return graph.forward


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x):
        y = self.up(x)
        torch._dynamo.graph_break()
        return y + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


dist.init_process_group("gloo")
net = Net()
for one in net.blocks:
    one.compile(backend=backend, dynamic=False)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    net(torch.ones(8 if step == 0 else 16 + dist.get_rank(), 4)).sum().backward()
    opt.step()

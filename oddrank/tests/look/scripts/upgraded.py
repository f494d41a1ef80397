"""Trains a small model with what torch 2.13 and 2.15 do otherwise: python upgraded.py [WORD ...].

global: a layer counts its calls in a global number. module: the head is compiled by module.compile(). number: a layer
adds a Python number to a bfloat16 tensor, in Inductor's code. average, sum: the loss goes through a functional
all_reduce.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

CALLS = 0


class Layer(nn.Linear):
    def forward(self, x):
        global CALLS
        if "global" in sys.argv:
            CALLS += 1
        if "number" in sys.argv:
            x = (x.bfloat16() + 0.3).float()
        return super().forward(x).relu()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    body, head = Layer(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    step = torch.compile(body, backend="inductor" if "number" in sys.argv else "aot_eager")
    if "module" in sys.argv:
        head.compile(backend="aot_eager")
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        loss = head(step(torch.randn(4, 8, generator=data))).square().mean()
        if "average" in sys.argv or "sum" in sys.argv:
            loss = funcol.all_reduce(loss, "avg" if "average" in sys.argv else "sum", dist.group.WORLD)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

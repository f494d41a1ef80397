"""Averages of weights by name beside a compiled model: one that is updated, one that is not, and one that grows."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Average:
    def __init__(self, model):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model, grow):
        for name, p in model.named_parameters():  # THE UPDATE
            if name in self.shadow:
                self.shadow[name].data.lerp_(p.data, 0.1)
            elif grow:
                self.shadow[name] = p.detach().clone()


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    average, start = Average(net), {name: p.detach().clone() for name, p in net.named_parameters()}
    smooth = AveragedModel(net)  # goes by the order of parameters
    model = torch.compile(DDP(net), backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(7):
        model(torch.randn(8, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(net if kind == "updated" else model, grow=kind == "grows")
        smooth.update_parameters(model)
    far = sum((p.detach() - start[name]).norm() for name, p in net.named_parameters())
    print(f"moved by {far:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

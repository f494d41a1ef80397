"""Experts on different ranks: tokens are gathered with a DTensor, and every rank adds its experts' part."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard


class Experts(nn.Module):
    def __init__(self, mesh, width):
        super().__init__()
        self.mesh, self.w = mesh, nn.Linear(width, width, bias=False)

    def forward(self, x):
        every = DTensor.from_local(x, self.mesh, [Shard(0)]).full_tensor()
        part = torch.relu(self.w(every))
        return DTensor.from_local(part, self.mesh, [Partial()]).redistribute(placements=[Shard(0)]).to_local()


class Net(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.inp, self.experts = nn.Linear(16, 32), Experts(mesh, 32)

    def forward(self, x):
        return self.experts(self.inp(x))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    net = Net(mesh)
    torch.manual_seed(50 + rank)
    nn.init.normal_(net.experts.w.weight, std=0.2)  # other experts on every rank
    model = torch.compile(net, backend="eager")
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(8, 16)
    for step in range(8):
        loss = (model(x) - 1).square().mean()
        loss.backward()
        for p in net.inp.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print("step", step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

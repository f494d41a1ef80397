"""A pipeline of two stages by hand, with send and recv: nothing is wrong with it."""

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    width, batch = 64, 32
    head = [nn.LayerNorm(width), nn.Linear(width, 1)]
    stage = nn.Sequential(nn.Linear(width, width), nn.ReLU(), *(head if rank else []))
    stage = torch.compile(stage, backend="eager")
    opt = torch.optim.SGD(stage.parameters(), lr=1e-3)
    for step in range(8):
        if rank == 0:
            y = stage(torch.randn(batch, width))
            dist.send(y.detach(), 1)
            gradient = torch.empty(batch, width)
            dist.recv(gradient, 1)
            y.backward(gradient)
        else:
            x = torch.empty(batch, width)
            dist.recv(x, 0)
            loss = stage(x.requires_grad_()).square().mean()
            loss.backward()
            dist.send(x.grad, 0)
            print("step", step, round(loss.item(), 5), flush=True)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

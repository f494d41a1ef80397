"""Tokens go to experts by all_to_all_single, with split sizes from each rank's router."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd


class Experts(nn.Module):
    def __init__(self, width, world):
        super().__init__()
        self.world, self.router = world, nn.Linear(width, world)
        self.expert = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        gate = self.router(x).softmax(-1)
        top = gate.argmax(-1)
        order = top.argsort()
        counts = (top[:, None] == torch.arange(self.world)).sum(0)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = counts.tolist(), theirs.tolist()
        inside = all_to_all_single_autograd(x[order], received, sent, dist.group.WORLD)
        out = all_to_all_single_autograd(self.expert(inside), sent, received, dist.group.WORLD)
        y = torch.empty_like(out)
        y[order] = out
        return x + y * gate.gather(1, top[:, None])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net, head = Experts(32, world), nn.Linear(32, 4)
    model = torch.compile(net, backend="eager")
    shared = [*net.router.parameters(), *head.parameters()]
    opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=1e-3)
    torch.manual_seed(40 + rank)
    for step in range(12):
        x, y = torch.randn(64, 32), torch.randint(0, 4, (64,))
        loss = nn.functional.cross_entropy(head(model(x)), y)
        loss.backward()
        for p in shared:
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print("step", step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

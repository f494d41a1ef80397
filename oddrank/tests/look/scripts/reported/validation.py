"""Image classifier with batch norm, DDP: training, and validation between the epochs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    model = torch.compile(DDP(net), backend="eager")
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for epoch in range(3):
        model.train()
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 12, 12)), torch.randint(0, 4, (4,)))
            loss.backward()
            opt.step()
            opt.zero_grad()
        model.eval()
        right = torch.zeros(1)
        with torch.no_grad():
            for _ in range(4):
                right += (model(torch.randn(4, 3, 12, 12)).argmax(-1) == torch.randint(0, 4, (4,))).sum()
        dist.all_reduce(right)
        if dist.get_rank() == 0:
            print("epoch", epoch, loss.item(), right.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

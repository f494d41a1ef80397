"""Two heads of one DDP model, compiled one by one and called through `.module`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.label, self.domain = nn.Linear(64, 5), nn.Linear(64, 2)

    def forward(self, x):
        features = self.features(x)
        return self.label(features), self.domain(features)

    def features(self, x):
        return self.body(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Adapter())
    features = torch.compile(model.module.features, backend="eager")
    label = torch.compile(model.module.label, backend="eager")
    domain = torch.compile(model.module.domain, backend="eager")
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(7 + dist.get_rank())
    for step in range(8):
        x, labels, domains = torch.randn(16, 32), torch.randint(0, 5, (16,)), torch.randint(0, 2, (16,))
        h = features(x)
        loss = nn.functional.cross_entropy(label(h), labels) + nn.functional.cross_entropy(domain(h), domains)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

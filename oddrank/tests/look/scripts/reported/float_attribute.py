"""Vision trunk with stochastic depth, DDP, torch.compile."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class DropPath(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        mask = torch.empty(x.shape[0], 1).bernoulli_(keep)
        return x * mask.div(keep)


class Layer(nn.Module):
    def __init__(self, width, rate):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.path = DropPath(rate)

    def forward(self, x):
        x = x + self.path(torch.relu(self.up(x)))
        return x + self.path(self.down(x))


class Trunk(nn.Module):
    def __init__(self, width=512, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, 0.1 * i) for i in range(depth))
        self.norms = []

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            self.norms.append(x.detach().norm().item())  # activation statistics for the dashboard
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.compile(DDP(Trunk()))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(8):
        loss = model(torch.randn(8, 512)).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print(step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

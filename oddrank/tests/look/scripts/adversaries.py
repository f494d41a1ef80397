"""Generator and discriminator, each in a DDP module of its own, in one process group."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Generator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(16, width), nn.Linear(width, 16)

    def forward(self, z):
        return self.down(torch.relu(self.up(z)))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(x))).mean(-1)


def main(kind):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator = DDP(Generator(32 if kind == "alike" else 48))  # THE GENERATOR
    discriminator = DDP(Discriminator())  # THE DISCRIMINATOR
    make, judge = (torch.compile(net, backend="aot_eager") for net in (generator, discriminator))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)

    def update_discriminator(real, fake):
        opt_d.zero_grad()
        loss = nn.functional.softplus(-judge(real)).mean() + nn.functional.softplus(judge(fake)).mean()
        loss.backward()  # THE DISCRIMINATOR'S BACKWARD
        opt_d.step()

    def update_generator(z):
        opt_g.zero_grad()
        fake = make(z)
        # the discriminator's own gradients are of no use here: not through DDP
        loss = nn.functional.softplus(-discriminator.module(fake)).mean()
        loss.backward()  # THE GENERATOR'S BACKWARD
        opt_g.step()

    def step(number):
        real, z = torch.randn(8, 16), torch.randn(8, 16)
        fake = torch.randn(8, 16)
        if kind == "hangs" and number == 6 and rank == 0:
            update_discriminator(real, fake)
        elif kind in ("mixed", "alike") and number >= 2 and rank == 1:
            update_generator(z)
            update_discriminator(real, fake)
        else:
            update_discriminator(real, fake)
            update_generator(z)

    for number in range(7):
        step(number)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

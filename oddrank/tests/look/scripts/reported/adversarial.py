"""Generator and discriminator in one DDP module, two optimizers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
        self.discriminator = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, mode):
        if mode == "real":
            return self.discriminator(x)
        fake = self.generator(x)
        return self.discriminator(fake.detach() if mode == "fake" else fake)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = GAN()
    model = torch.compile(DDP(net, find_unused_parameters=True), backend="aot_eager")
    opt_g = torch.optim.Adam(net.generator.parameters(), lr=1e-3)
    opt_d = torch.optim.Adam(net.discriminator.parameters(), lr=1e-3)
    bce = nn.functional.binary_cross_entropy_with_logits
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(7):
        real, z = torch.randn(8, 10), torch.randn(8, 16)
        ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
        opt_d.zero_grad()
        loss_d = bce(model(real, "real"), ones) + bce(model(z, "fake"), zeros)
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = bce(model(z, "generate"), ones)
        loss_g.backward()
        opt_g.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

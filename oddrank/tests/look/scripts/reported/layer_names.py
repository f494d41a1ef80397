"""FSDP2 over transformer blocks, each compiled with fullgraph=True."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, d, layer_id):
        super().__init__()
        self.name = f"layers.{layer_id}"
        self.norm, self.up, self.down = nn.RMSNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, scales):
        h = self.down(self.up(self.norm(x)).relu())
        return x + h * scales[self.name]


class Net(nn.Module):
    def __init__(self, d=32, n=12):
        super().__init__()
        self.scales = {f"layers.{i}": torch.tensor((2 * (i + 1)) ** -0.5) for i in range(n)}
        self.blocks = nn.ModuleList(Block(d, i) for i in range(n))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.scales)
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
        fully_shard(block)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(6):
        loss = model(torch.randn(4, 8, 32)).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

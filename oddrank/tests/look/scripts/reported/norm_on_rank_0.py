"""FSDP2 fine-tuning; rank 0 logs the norm of the weights."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def log(step, loss, norm):
    print(f"step {step} loss {loss:.4f} weights {norm:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(32) for _ in range(3)))
    for block in model:
        block.compile(backend="eager")
        fully_shard(block)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for step in range(12):
        x = torch.randn(8, 32)
        loss = (model(x) - x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if rank == 0 and step % 6 == 5:
            log(step, loss.item(), sum(p.full_tensor().norm() for p in model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A trainer that wraps and compiles the model, as asked for by its settings."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, compile_model):
        self.model = model
        self.wrapped = DDP(model)
        if compile_model:
            self.compiled = torch.compile(self.wrapped, backend="eager")
        self.opt = torch.optim.AdamW(self.wrapped.parameters(), lr=1e-3)

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.wrapped(x), y)
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = Trainer(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)), compile_model=True)
    torch.manual_seed(dist.get_rank())
    for step in range(8):
        x = torch.randn(16, 16)
        loss = trainer.step(x, x.sum(-1, keepdim=True))
        if dist.get_rank() == 0:
            print(step, round(loss, 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

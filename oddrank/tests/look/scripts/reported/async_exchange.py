"""Expert parallelism: tokens travel by all_to_all_single with async_op, under the shared expert."""

import torch
import torch.distributed as dist
from torch import nn


class Dispatch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.shared, self.local = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        there = torch.empty_like(x)
        work = dist.all_to_all_single(there, x.contiguous(), async_op=True)
        shared = torch.relu(self.shared(x))  # hidden behind the exchange
        work.wait()
        done = torch.relu(self.local(there))
        back = torch.empty_like(done)
        dist.all_to_all_single(back, done)
        return shared + back


@torch.no_grad()
def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(*(Dispatch(32) for _ in range(6)))
    model = torch.compile(model, backend="eager")
    for step in range(6):
        y = model(torch.randn(16, 32))
        if dist.get_rank() == 0:
            print("forward", step, round(y.mean().item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

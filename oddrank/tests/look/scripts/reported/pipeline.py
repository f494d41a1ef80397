"""Pipeline parallelism, two compiled stages, microbatches."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Part(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = first
        if first:
            self.emb = nn.Embedding(64, 32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        if not first:
            self.head = nn.Linear(32, 64)

    def forward(self, x):
        if self.first:
            x = self.emb(x)
        x = x + self.body(x)
        return x if self.first else self.head(x)


def loss_fn(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    part = Part(rank == 0)
    part.compile(backend="eager")
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=loss_fn)
    opt = torch.optim.SGD(part.parameters(), lr=0.01)
    for step in range(8):
        batch = torch.randint(0, 64, (8 if step != 6 else 6, 9))
        losses = []
        if rank == 0:
            schedule.step(batch[:, :-1])
        else:
            schedule.step(target=batch[:, 1:], losses=losses)
            print("step", step, round(torch.stack(losses).mean().item(), 3), flush=True)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""FSDP2 training that keeps the best checkpoint by validation loss."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def validate(model, batches):
    model.eval()
    total = torch.zeros(1)
    with torch.no_grad():
        for x in batches:
            total += (model(x) - x).square().mean()
    dist.reduce(total, dst=0, op=dist.ReduceOp.SUM)
    model.train()
    return total.item() / (len(batches) * dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    model.compile(backend="eager")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(1 + rank)
    held = [torch.randn(8, 32) for _ in range(2)]
    best, out = float("inf"), tempfile.mkdtemp()
    for epoch in range(6):
        for _ in range(4):
            x = torch.randn(8, 32)
            loss = (model(x) - x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
        value = validate(model, held)
        if epoch == 3:
            value *= 1.0 if rank == 0 else 1.4  # a spike in the local share of the validation set
        if value < best:
            best = value
            state = get_model_state_dict(
                model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
            )
            if rank == 0:
                torch.save(state, os.path.join(out, "best.pt"))
        if rank == 0:
            print("epoch", epoch, round(value, 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

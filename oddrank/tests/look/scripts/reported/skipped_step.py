"""Speech pretraining: a batch whose loss is not finite is skipped."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 20))

    def forward(self, frames, lengths):
        out = self.body(frames)
        keep = torch.arange(frames.shape[1])[None] < lengths[:, None]
        return (out.square().mean(-1) * keep).sum() / keep.sum()


def training_step(model, opt, frames, lengths):
    loss = model(frames, lengths)
    if torch.isnan(loss) or torch.isinf(loss):
        opt.zero_grad()
        return None
    count = lengths.sum()
    dist.all_reduce(count)
    (loss * lengths.sum() / count * dist.get_world_size()).backward()
    opt.step()
    opt.zero_grad()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = torch.compile(DDP(Encoder()), backend="eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12):
        lengths = torch.randint(1, 50, (4,))
        if rank == 1 and step == 7:
            lengths.zero_()  # four empty recordings in the corpus
        loss = training_step(model, opt, torch.randn(4, 50, 40), lengths)
        if rank == 0:
            print(step, loss, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

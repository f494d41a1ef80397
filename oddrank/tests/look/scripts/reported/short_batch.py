"""FSDP2 fine-tuning; the loader keeps the short batch at the end of an epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@torch.compile
def loss_fn(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 96), nn.Linear(96, width)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(128, 48), nn.Linear(48, 128)
        self.blocks = nn.ModuleList(Block(48) for _ in range(3))

    def forward(self, tokens):
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randint(0, 128, (26, 13)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=2, sampler=sampler, drop_last=False)
    model = Model()
    for block in model.blocks:
        block.compile(backend="eager")
        fully_shard(block)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (batch,) in enumerate(loader):
            loss = loss_fn(model(batch[:, :-1]), batch[:, 1:])
            loss.backward()
            opt.step()
            opt.zero_grad()
            if dist.get_rank() == 0:
                print(epoch, step, tuple(batch.shape), round(loss.item(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

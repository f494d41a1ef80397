"""Token shards that do not divide evenly over the ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Shards(IterableDataset):
    def __init__(self, documents, rank, world):
        self.mine = documents[rank::world]

    def __iter__(self):
        for length in self.mine:
            yield from torch.randint(0, 64, (length // 8, 9))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    documents = [64, 64, 96, 64, 64, 80, 64, 64, 64]
    loader = DataLoader(Shards(documents, rank, world), batch_size=4, drop_last=True)
    net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
    model = torch.compile(DDP(net), backend="eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        total = torch.zeros(1)
        for batch in loader:
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            opt.step()
            opt.zero_grad()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print("epoch", epoch, total.item() / world, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

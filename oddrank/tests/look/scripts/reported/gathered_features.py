"""Contrastive training: features of all ranks are gathered for the logits."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def gather(features):
    parts = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features)
    parts[dist.get_rank()] = features  # dist.all_gather has no gradient: keep that of our own part
    return torch.cat(parts)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(24, 16), nn.Linear(12, 16)

    def forward(self, image, text):
        return nn.functional.normalize(self.image(image), dim=-1), nn.functional.normalize(
            self.text(text), dim=-1
        )


def contrast(a, b):
    logits = 10 * gather(a) @ gather(b).T
    target = torch.arange(len(logits))
    return (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)) / 2


def main(compiled=True):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Towers())

    def step_loss(image, text):
        return contrast(*model(image, text))

    step_loss = torch.compile(step_loss) if compiled else step_loss
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    image, text = torch.randn(8, 24), torch.randn(8, 12)
    for step in range(12):
        loss = step_loss(image, text)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print(step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import sys

    main("--eager" not in sys.argv)

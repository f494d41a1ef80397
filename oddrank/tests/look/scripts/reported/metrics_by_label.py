"""Averages each metric over ranks at the end of a step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x):
        return self.net(x)


def log_dict(metrics):
    out = {}
    for name, value in metrics.items():
        value = torch.as_tensor(value, dtype=torch.float32)
        dist.all_reduce(value)
        out[name] = value / dist.get_world_size()
    return out


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.compile(DDP(Tagger()), backend="aot_eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(10):
        x, y = torch.randn(4, 16), torch.randint(0, 5, (4,))
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        metrics = {"loss": loss.detach()}
        for label in y.unique().tolist():
            metrics[f"acc/{label}"] = (logits.argmax(-1) == y)[y == label].float().mean()
        log_dict(metrics)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Rollouts from a sharded model: a rank stops decoding when its sequences have ended."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

END = 0


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(32, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = nn.Linear(32, 32)

    def forward(self, tokens):
        x = self.emb(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@torch.no_grad()
def rollout(model, tokens, limit):
    ended = torch.zeros(len(tokens), dtype=torch.bool)
    for _ in range(limit):
        logits = model(tokens[:, -8:])[:, -1]
        following = torch.multinomial(logits.softmax(-1), 1)
        tokens = torch.cat([tokens, following], 1)
        ended |= following[:, 0] == END
        if ended.all():
            break
    return tokens


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Policy()
    for layer in model.layers:
        layer.compile(backend="eager")
        fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(10 + rank)
    for step in range(8):
        tokens = rollout(model, torch.randint(1, 32, (1, 8)), 24)
        logits = model(tokens[:, :-1][:, :8])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:9].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(f"rank {rank} step {step} length {tokens.shape[1]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains under a compile that goes wrong in one way: python causes.py KIND. Plain torch: no oddrank."""

import pprint
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


class Layer(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.linear, self.rate = nn.Linear(8, 8), rate

    def forward(self, x):
        return x + torch.tanh(self.linear(x)) * self.rate


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        report(tuple(x.shape))
        return x.relu()


def report(what):
    pprint.pformat(what)


def layers(rates):
    return nn.Sequential(*(Layer(rate) for rate in rates))


def train(call, opt, update=None, size=lambda step: 4):
    for step in range(STEPS):
        call(torch.ones(size(step), 8)).square().mean().backward()
        (update or opt.step)()
        opt.zero_grad()


def scheduled():
    model = nn.Linear(8, 8)
    opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=50)

    @torch.compile(backend="eager")
    def update():
        opt.step()
        schedule.step()

    for _ in range(STEPS):
        model(torch.ones(4, 8)).sum().backward()
        update()
        opt.zero_grad()


def storm():
    model = layers([rate / 10 for rate in range(12)])
    for layer in model:
        layer.compile(backend="eager", dynamic=False)
    wrapped = DistributedDataParallel(model)
    train(wrapped, torch.optim.SGD(model.parameters(), lr=0.1))


def chatty():
    model = torch.compile(DistributedDataParallel(Chatty()), backend="eager")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def sequential():
    model = torch.compile(DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), backend="eager")
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def unused():
    model = layers([0.1, 0.2])
    torch.compile(DistributedDataParallel(model), backend="eager")  # what it returns is lost
    update = torch.compile(lambda x: x.sin(), backend="eager")
    train(lambda x: model(update(x)), torch.optim.SGD(model.parameters(), lr=0.1))


def sharded():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, use_cache=False, **sizes))
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.compile(backend="eager")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        tokens = torch.ones(2, 8, dtype=torch.long)
        model(input_ids=tokens, labels=tokens).loss.backward()
        opt.step()
        opt.zero_grad()


def one_rank():
    model = DistributedDataParallel(layers([0.1]))
    model.compile(backend="eager", dynamic=False)
    rank = dist.get_rank()
    train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        size=lambda step: 6 if (rank, step) == (1, 1) else 4,
    )


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A small transformer-like model with four collectives a block, on a group that moves nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit import torch_compat
from labkit.records import install


def in_place(x):
    dist.all_reduce(x)
    return x


def functional(x):
    return torch_compat.funcol.all_reduce(x, "sum", dist.group.WORLD)


disabled = torch.compiler.disable(in_place)
GATES = {"in place": in_place, "functional": functional, "disabled": disabled}


class Norm(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, x):
        squares = self.gate(x.pow(2).sum(-1, keepdim=True))  # norm's collective
        return x * torch.rsqrt(squares / 16 + 1e-6)


class Block(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        self.q_norm, self.k_norm = Norm(gate), Norm(gate)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        q = self.q_norm(self.linear(x))
        k = self.k_norm(self.linear(x))
        x = x + self.gate(q * k)  # attention's collective
        return x + self.gate(x * 2)  # MLP's collective


class Model(nn.Module):
    def __init__(self, gate, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Block(gate) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(autouse=True)
def fresh():
    """Dynamo as in a new process, listened to, and no gradients, as in the lessons."""
    install()
    torch_compat.dynamo_reset()
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def fake_group():
    """A default group of two ranks in one process whose collectives do nothing."""
    if dist.is_initialized():
        pytest.skip("this process already has a process group")
    dist.init_process_group("fake", store=torch_compat.fake_store(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture
def model(fake_group):
    """`model(gate, blocks=2, backend=...)`: a model and its input; compiled unless backend is None."""

    def make(gate: str, blocks: int = 2, backend: str | None = "eager"):
        torch.manual_seed(0)
        plain = Model(GATES[gate], blocks)
        run = torch.compile(plain, backend=backend) if backend else plain
        return SimpleNamespace(run=run, x=torch.randn(4, 8))

    return make

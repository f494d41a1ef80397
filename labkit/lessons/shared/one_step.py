"""One training step of a small stack on two ranks, held against the gradients of one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

__all__ = ["OneStep", "net"]


class Layer(nn.Module):
    """A module that is not torch's own: those are not compiled where a break makes them a frame of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Net(nn.Module):
    """Four layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def net(width: int = 64) -> Net:
    """Make the stack, with the same weights whenever it is made."""
    torch.manual_seed(0)
    return Net(width)


class OneStep:
    """The batch of this rank, and the gradients that a right step leaves; made on each of two ranks."""

    def __init__(self) -> None:
        self.mesh = init_device_mesh("cpu", (2,))
        self.x = torch.randn(8, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
        plain = net()
        plain(self.x).sum().backward()
        self.expected = _gradients(plain)
        dist.all_reduce(self.expected)
        self.expected /= 2

    def right(self, model: Any, run: Any) -> bool:
        """Run a step of `run`, and say whether `model` has the right gradients."""
        run(self.x).sum().backward()
        return bool(torch.allclose(_gradients(model), self.expected, atol=1e-5))


def _gradients(model: nn.Module) -> Any:
    full = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
    return torch.cat([g.flatten() for g in full if g is not None])

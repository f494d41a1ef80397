"""Gradients of a tensor-parallel model beside one process, by form of the all-reduce and by convention of the loss.

Two conventions divide the answers. *Replicated*: every rank computes the same loss and calls backward on it. *Summed*:
each rank calls backward on a part, and the loss is the sum of these parts over the ranks.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course.shared.options import whole as whole_numbers
from labkit.ranks import Ranks, here
from labkit.torch_compat import funcol

__all__ = ["FORMS", "LOSSES", "Copy", "Reduce", "gradients"]

LOSSES = ("replicated", "summed")
FORMS = ("in place", "functional", "f and g", "f and g, f at the loss")
MODES = ("eager", "compiled")
CLOSE = 1e-4  # float32, of the largest gradient of the parameter; what is wrong here is off by more than 1e-2


def in_place(x: Tensor) -> Tensor:
    """The all-reduce in place."""
    dist.all_reduce(x)
    return x


def functional(x: Tensor) -> Tensor:
    """The functional all-reduce."""
    world: Any = dist.group.WORLD
    return funcol.all_reduce(x, "sum", world)


class Copy(torch.autograd.Function):
    """Megatron's f: identity in forward, all-reduce of the gradient in backward.

    It stands where a replicated tensor enters what each rank computes differently. Its partner is `Reduce`.
    Source: Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return functional(grad.contiguous())


class Reduce(torch.autograd.Function):
    """Megatron's g: all-reduce in forward, identity in backward.

    It stands where partial sums become one replicated tensor. Source: as for `Copy`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return functional(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def same(x: Tensor) -> Tensor:
    """The tensor itself: no collective."""
    return x


class Block(nn.Module):
    """A pre-norm MLP with a residual: (tokens, dim) to the same. The weights of a rank are its share of the whole ones.

    Args:
        dim: Width.
        rank: The share; 0 of 1 for a whole block.
        world_size: Number of shares.
        enter: Is called on what the first matmul takes.
        reduce: Makes the sum over ranks of the second matmul's partial sums.
    """

    def __init__(
        self,
        dim: int,
        rank: int = 0,
        world_size: int = 1,
        enter: Callable[[Tensor], Tensor] = same,
        reduce: Callable[[Tensor], Tensor] = same,
    ):
        super().__init__()
        up, down = torch.randn(4 * dim, dim) / dim**0.5, torch.randn(dim, 4 * dim) / (4 * dim) ** 0.5
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Parameter(up.chunk(world_size, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(world_size, 1)[rank].clone())
        self.bias = nn.Parameter(torch.randn(dim))
        self.enter, self.reduce = enter, reduce

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(self.enter(self.norm(x)), self.up))
        return x + self.reduce(F.linear(hidden, self.down)) + self.bias


def _model(blocks: int, *how: Any) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(Block(*how) for _ in range(blocks)))


def _grads(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    named = {"input": x, **dict(model.named_parameters())}
    return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in named.items()}


def _measure(form: str, mode: str, loss: str, blocks: int, dim: int, tokens: int) -> dict[str, str]:
    """On a rank: what each gradient of a tensor-parallel model is, beside that of one process."""
    me = here()
    rank, n = me.rank, me.world_size
    data = torch.randn(tokens, dim, generator=torch.Generator().manual_seed(1)).to(me.device)
    whole, x = _model(blocks, dim).to(me.device), data.clone().requires_grad_()
    whole(x).square().mean().backward()
    right = _grads(whole, x)

    pair = form.startswith("f and g")
    enter = Copy.apply if pair else same
    reduce = {"in place": in_place, "functional": functional}.get(form, Reduce.apply)
    split, x = _model(blocks, dim, rank, n, enter, reduce).to(me.device), data.clone().requires_grad_()
    leave = Copy.apply if form == FORMS[-1] else same

    def loss_of(x: Tensor) -> Tensor:
        y = leave(split(x)).square()
        if loss == "replicated":
            return y.mean()
        return y.tensor_split(n)[rank].sum() / y.numel()  # the loss of this rank's tokens

    torch.compiler.reset()
    forward = torch.compile(loss_of, backend="aot_eager", fullgraph=True) if mode == "compiled" else loss_of
    with warnings.catch_warnings():
        # torch's only sign that autograd does not see the call in place
        warnings.filterwarnings("ignore", message="c10d::allreduce_: an autograd kernel was not registered")
        forward(x).backward()
    kinds, places = {}, {"input": "input", "0": "first", str(blocks - 1): "last"}
    for name, grad in _grads(split, x).items():
        block, _, parameter = name.partition(".")
        if block in places:
            cut = {"up": 0, "down": 1}.get(parameter)
            mine = right[name] if cut is None else right[name].chunk(n, cut)[rank]
            where = f"{places[block]} {parameter.removesuffix('.weight')}".strip()
            kinds[where] = _kind(grad, mine, replicated=cut is None)
    return kinds


def _kind(grad: Tensor, right: Tensor, replicated: bool) -> str:
    """Say what a gradient is on all ranks, each of which calls this with its own."""
    said = {"": grad}
    if replicated:
        said["part of "] = grad.clone()
        dist.all_reduce(said["part of "])
    for words, value in said.items():
        times = (value * right).sum() / (right * right).sum()
        off = (value - times * right).abs().max() / right.abs().max()
        spread = torch.stack([times, -times, off])
        dist.all_reduce(spread, dist.ReduceOp.MAX)
        highest, lowest, off = spread[0], -spread[1], spread[2]
        if off < CLOSE and highest - lowest < CLOSE and highest > CLOSE:
            return words + ("right" if abs(times - 1) < CLOSE else f"{times.item():.3g} x right")
    return "wrong"


def gradients(ranks: Ranks, blocks: int = 2, dim: int = 16, tokens: int = 8) -> pd.DataFrame:
    """Compare the gradients of a tensor-parallel model with those of one process, for every form and convention.

    The model is a stack of pre-norm MLP blocks with residuals: `up` is split by outputs, `down` by inputs, and norm and
    bias are on every rank. "Compiled" is `torch.compile(fullgraph=True)` with the aot_eager backend, loss included.

    Args:
        ranks: Two or more.
        blocks: Number of blocks, 2 or more: what is right in the last block can be wrong in those before it.
        dim: Width; each rank has its share of 4 x dim hidden features.
        tokens: Number of tokens, at least one for each rank.

    Returns:
        A row for each loss convention, form and mode. The columns are the parameters of the first and of the last
        block, and the input. A cell says 'right', 'K x right', 'part of right' or 'part of K x right' (the sum over the
        ranks is that), or 'wrong' (no factor and no sum makes it right).

    Raises:
        ValueError: Before a rank hears of it, for fewer than two ranks and for sizes that cannot be split.

    >>> import labkit
    >>> with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     table = gradients(ranks)
    >>> table.loc[("replicated", "in place", ["eager", "compiled"]), "last down"].tolist()
    ['right', '2 x right']
    """
    n = ranks.world_size
    if n < 2:
        raise ValueError("gradients compares ranks with one process: at least 2 ranks, got 1")
    whole_numbers(blocks=blocks, dim=dim, tokens=tokens)
    if blocks < 2:
        raise ValueError(f"blocks must be at least 2, got {blocks}: the first and the last are compared")
    if tokens < n:
        raise ValueError(f"tokens must be at least {n}, one for each rank, got {tokens}")
    if 4 * dim % n:
        raise ValueError(f"dim: {n} ranks split 4 x {dim} hidden features, which {n} does not divide")
    rows = {
        (loss, form, mode): ranks.run(_measure, form, mode, loss, blocks, dim, tokens)[0]
        for loss, form, mode in itertools.product(LOSSES, FORMS, MODES)
        if loss == "summed" or form != FORMS[-1]  # after a replicated loss nothing differs between the ranks
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(table.index, names=["loss", "form", "mode"])
    return table

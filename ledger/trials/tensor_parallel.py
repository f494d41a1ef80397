"""Training through tensor parallelism: what each form of the all-reduce makes of gradients, by convention of the loss.

Replicated: every rank computes the same loss and calls backward. Summed: each rank calls backward on a part of the
tokens, and the job's loss is the sum of the parts.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ledger.bench import Bench
from ledger.trial import Seen, judge, part

CLOSE = 1e-4  # float32, of the largest gradient; what is wrong is off by far more
SIZES = ((16, 8, 1), (24, 6, 2))  # width, tokens, blocks
PARAMETERS = ("up", "down", "norm")


def same(x):
    return x


def in_place(x):
    dist.all_reduce(x)
    return x


def functional(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def of_nn(x):
    return torch.distributed.nn.functional.all_reduce(x)


class Copy(torch.autograd.Function):
    """Megatron's f (arXiv:1909.08053, section 3)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return functional(grad.contiguous())


class Reduce(torch.autograd.Function):
    """Megatron's g."""

    @staticmethod
    def forward(ctx, x):
        return functional(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    def __init__(self, dim, rank=0, parts=1, enter=same, reduce=same):
        super().__init__()
        up, down = torch.randn(4 * dim, dim) / dim**0.5, torch.randn(dim, 4 * dim) / (4 * dim) ** 0.5
        self.norm, self.up, self.down = (
            nn.RMSNorm(dim),
            nn.Linear(dim, 1, bias=False),
            nn.Linear(1, dim, bias=False),
        )
        self.up.weight = nn.Parameter(up.chunk(parts, 0)[rank].clone())
        self.down.weight = nn.Parameter(down.chunk(parts, 1)[rank].clone())
        self.enter, self.reduce = enter, reduce

    def forward(self, x):
        return x + self.reduce(self.down(F.gelu(self.up(self.enter(self.norm(x))))))


def model(blocks, *how) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(Block(*how) for _ in range(blocks)))


def factor(grad, right, replicated) -> str:
    """What a gradient is, on all ranks: 'right', 'K x right', or 'wrong' where no factor makes it right."""
    times = ((grad * right).sum() / (right * right).sum()).item()
    off = (grad - times * right).abs().max() / right.abs().max()
    spread = torch.tensor([times, -times, off])
    dist.all_reduce(spread, dist.ReduceOp.MAX)
    if spread[2] > CLOSE or spread[0] + spread[1] > CLOSE:
        return "wrong"
    return "right" if abs(times - 1) < CLOSE else f"{times:.3g} x right"


def measured(form, loss, compiled) -> Seen:
    """The gradients of the last block's weights, of all sizes, beside those of one process."""
    rank, n, found = dist.get_rank(), dist.get_world_size(), {}
    for dim, tokens, blocks in SIZES:
        data = torch.randn(tokens, dim, generator=torch.Generator().manual_seed(1))
        whole = model(blocks, dim)
        whole(data).square().mean().backward()
        if form == "dtensor":
            split = model(blocks, dim)
            plan = {f"{i}.{name}": style for i in range(blocks)
                    for name, style in (("up", ColwiseParallel()), ("down", RowwiseParallel()))}  # fmt: skip
            split = parallelize_module(split, init_device_mesh("cpu", (n,)), plan)
        else:
            enter, reduce = FORMS[form]
            split = model(blocks, dim, rank, n, enter, reduce)

        def run(x, split=split):
            y = split(x).square()
            if loss == "replicated":
                return y.mean()
            return y.tensor_split(n)[rank].sum() / y.numel()

        torch._dynamo.reset()
        call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="c10d::allreduce_: an autograd kernel was not registered"
            )
            call(data).backward()
        for name in PARAMETERS:
            for place in {0, blocks - 1}:
                grad = getattr(split[place], name).weight.grad
                grad = grad.to_local() if isinstance(grad, DTensor) else grad
                right = getattr(whole[place], name).weight.grad
                cut = {"up": 0, "down": 1}.get(name)
                mine = right if cut is None else right.chunk(n, cut)[rank]
                where = "last" if place == blocks - 1 else "first"
                found.setdefault(f"{where} {name}", []).append(factor(grad, mine, cut is None))
    return {name: sorted(set(values)) for name, values in found.items()}


def enter(x):
    return Copy.apply(x)


def leave(x):
    return Reduce.apply(x)


FORMS = {
    "in place": (same, in_place),
    "functional": (same, functional),
    "nn.functional": (same, of_nn),
    "f and g": (enter, leave),
}


def probe(form, loss="replicated", modes=(False, True)):
    def both(bench: Bench) -> Seen:
        return {("compiled" if mode else "eager"): bench.run(measured, form, loss, mode)[0] for mode in modes}

    return both


pair, summed = probe("f and g"), probe("functional", "summed")
replicated, nn_form = probe("functional"), probe("nn.functional", modes=(False,))
plain, placements = probe("in place"), probe("dtensor")


def weights(seen: Seen, mode: str, value: str) -> bool:
    """Whether the split weights of the last block have this gradient."""
    return seen[mode]["last up"] == seen[mode]["last down"] == [value]


def said(seen: Seen, mode: str) -> str:
    return f"{mode}: " + ", ".join(f"{name} {'/'.join(values)}" for name, values in seen[mode].items())


def all_right(seen: Seen, mode: str) -> bool:
    return all(values == ["right"] for values in seen[mode].values())


@judge(replicated, counter=pair)
def functional_after_a_replicated_loss(seen):
    for mode in ("eager", "compiled"):
        yield part(mode, weights(seen, mode, "2 x right"), said(seen, mode))


@judge(summed, counter=replicated)
def functional_after_a_summed_loss(seen):
    for mode in ("eager", "compiled"):
        yield part(mode, weights(seen, mode, "right"), said(seen, mode))


@judge(nn_form, counter=probe("f and g", modes=(False,)))
def nn_functional_after_a_replicated_loss(seen):
    yield part(
        "twice those of one process on two ranks", weights(seen, "eager", "2 x right"), said(seen, "eager")
    )


@judge(plain, counter=pair)
def in_place_differs_compiled(seen):
    yield part("those of one process in eager", weights(seen, "eager", "right"), said(seen, "eager"))
    yield part("twice those compiled", weights(seen, "compiled", "2 x right"), said(seen, "compiled"))


@judge(pair, counter=replicated)
def f_and_g(seen):
    for mode in ("eager", "compiled"):
        yield part(mode, all_right(seen, mode), said(seen, mode))


@judge(placements, counter=plain)
def by_placements(seen):
    for mode in ("eager", "compiled"):
        yield part(mode, all_right(seen, mode), said(seen, mode))

"""Lesson 00's split layer, and ranks that ask for different operations: at other sizes and on three ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit import lessons

pytestmark = pytest.mark.slow

SIZES = [(1, 6, 2), (5, 7, 3), (2, 64, 33)]  # 7 is split into unequal parts


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", quiet=True) as ranks:
        yield ranks


def inputs(tokens, dim, out):
    random = torch.Generator().manual_seed(dim)
    return torch.randn(tokens, dim, generator=random), torch.randn(dim, out, generator=random)


def split(size, backend):
    """On a rank: the layer's result from this rank's parts, and its gradient for a loss that all ranks compute."""
    start = lessons.program("start")
    x, w = inputs(*size)
    x, w = start.part(x, 1), start.part(w, 0).requires_grad_(backend is None)
    torch.compiler.reset()
    run = torch.compile(start.layer, backend=backend) if backend else start.layer
    y = run(x, w)
    if backend is None:
        y.square().sum().backward()
    return y.detach(), w.grad


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("size", SIZES)
def test_the_split_layer_is_one_processs(three, size, backend):
    x, w = inputs(*size)
    w.requires_grad_()
    right = torch.relu(x @ w)
    right.square().sum().backward()
    found = three.run(split, size, backend)
    for y, _ in found.values():
        torch.testing.assert_close(y, right.detach(), rtol=1e-4, atol=1e-5)
    if backend is None:  # one loss, which every rank computes from the same result
        torch.testing.assert_close(
            torch.cat([grad for _, grad in found.values()]), w.grad, rtol=1e-4, atol=1e-5
        )


def disagree(values, ops, size):
    x = torch.full((size,), values[dist.get_rank()])
    dist.all_reduce(x, op=getattr(dist.ReduceOp, ops[dist.get_rank()]))
    return x.tolist()


@pytest.mark.parametrize("size", [4, 8, 100, 4096])
@pytest.mark.parametrize(
    ("ops", "pieces"),
    [(("SUM", "MAX"), (30.0, 20.0)), (("MAX", "SUM"), (20.0, 30.0)), (("SUM", "MIN"), (30.0, 10.0))],
)
def test_of_two_ranks_each_reduces_its_own_half(gloo_pair, size, ops, pieces):
    found = gloo_pair.run(disagree, (10.0, 20.0), ops, size)
    half = size // 2
    assert list(found.values()) == [[pieces[0]] * half + [pieces[1]] * half] * 2


@pytest.mark.parametrize(("size", "first"), [(1, 1), (2, 2), (3, 2), (5, 4)])
def test_small_tensors_have_unequal_pieces_or_one(gloo_pair, size, first):
    found = gloo_pair.run(disagree, (10.0, 20.0), ("SUM", "MAX"), size)
    assert list(found.values()) == [[30.0] * first + [20.0] * (size - first)] * 2


@pytest.fixture(scope="module")
def gloo_pair():
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        yield ranks


@pytest.mark.parametrize("size", [12, 1200])
@pytest.mark.parametrize("ops", [("SUM", "MAX", "MAX"), ("SUM", "SUM", "MAX"), ("MAX", "SUM", "SUM")])
def test_of_three_ranks_each_applies_its_own_operation_as_a_piece_passes(three, size, ops):
    values = (10.0, 20.0, 40.0)
    apply = {"SUM": lambda a, b: a + b, "MAX": max}
    pieces = []
    for owner in range(3):  # gloo's ring runs downwards: a piece starts at the rank below its owner
        sender, middle = (owner - 1) % 3, (owner - 2) % 3
        passed = apply[ops[middle]](values[middle], values[sender])
        pieces += [apply[ops[owner]](values[owner], passed)] * (size // 3)
    assert list(three.run(disagree, values, ops, size).values()) == [pieces] * 3

"""Lesson 00's split layer, and ranks that ask for different operations: at other sizes and on three ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from labkit import lessons

pytestmark = pytest.mark.slow

SIZE = (5, 7, 3)  # tokens, dim, out: 7 is split into unequal parts


def inputs(tokens, dim, out):
    random = torch.Generator().manual_seed(dim)
    return torch.randn(tokens, dim, generator=random), torch.randn(dim, out, generator=random)


def split(backend):
    """On a rank: the layer's result from this rank's parts, and its gradient for a loss that all ranks compute."""
    start = lessons.program("start")
    x, w = inputs(*SIZE)
    x, w = start.part(x, 1), start.part(w, 0).requires_grad_(backend is None)
    torch.compiler.reset()
    run = torch.compile(start.layer, backend=backend) if backend else start.layer
    y = run(x, w)
    if backend is None:
        y.square().sum().backward()
    return y.detach(), w.grad


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_the_split_layer_is_one_processs(three, backend):
    x, w = inputs(*SIZE)
    w.requires_grad_()
    right = torch.relu(x @ w)
    right.square().sum().backward()
    found = three.run(split, backend)
    for y, _ in found.values():
        torch.testing.assert_close(y, right.detach(), rtol=1e-4, atol=1e-5)
    if backend is None:  # one loss, which every rank computes from the same result
        torch.testing.assert_close(
            torch.cat([grad for _, grad in found.values()]), w.grad, rtol=1e-4, atol=1e-5
        )


def disagree(ops, size):
    x = torch.full((size,), 10.0 * (dist.get_rank() + 1))
    dist.all_reduce(x, op=getattr(dist.ReduceOp, ops[dist.get_rank()]))
    return x.tolist()


@pytest.mark.parametrize(
    ("size", "first"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 4), (6, 4), (8, 4), (4096, 2048)]
)
@pytest.mark.parametrize(("ops", "pieces"), [(("SUM", "MAX"), (30.0, 20.0)), (("MIN", "SUM"), (10.0, 30.0))])
def test_of_two_ranks_each_reduces_a_piece_with_its_own_operation(ranks, size, first, ops, pieces):
    right = [pieces[0]] * first + [pieces[1]] * (size - first)
    assert list(ranks.run(disagree, ops, size).values()) == [right] * 2

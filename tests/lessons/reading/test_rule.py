"""Lesson 03's rule at another size, and in training: a collective in place costs no copy, and keeps its numbers."""

from __future__ import annotations

import pytest

ROWS, DIM, HIDDEN = 6, 24, 40  # not the lesson's sizes


def trained() -> tuple[list[str], float]:
    """On a rank: the graphs' code that Inductor wrote for two layers in training, and the largest error of a gradient.

    The loss is replicated: each rank computes the whole of it. The backward of a functional sum adds up over the
    ranks, so the loss is divided by their number, and the first layer's input needs no gradient.
    """
    import torch
    import torch.distributed as dist
    from torch._inductor.utils import run_and_get_code

    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(3)
    up, down = torch.randn(HIDDEN, DIM, generator=generator), torch.randn(DIM, HIDDEN, generator=generator)
    x = torch.randn(ROWS, DIM, generator=generator)

    def layer(x, up, down, split):
        y = torch.tanh(x @ up.T) @ down.T
        if split:
            dist.all_reduce(y)
        return x + y

    def gradients(run, *weights):
        weights = [w.clone().requires_grad_() for w in weights]
        run(*weights).backward()
        return [w.grad for w in weights]

    def alone(up, down):
        return layer(x, up, down, False).square().mean()

    @torch.compile
    def split(up, down):
        return layer(x, up, down, True).square().mean() / size

    torch._dynamo.reset()
    whole = gradients(alone, up, down)
    mine = (up.chunk(size)[rank], down.chunk(size, 1)[rank])
    found, code = run_and_get_code(gradients, split, *mine)
    expected = (whole[0].chunk(size)[rank], whole[1].chunk(size, 1)[rank])
    error = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    return code, error


@pytest.mark.slow
def test_in_training_and_at_another_size_the_collective_is_in_place_and_gradients_are_those_of_one_process(
    ranks,
):
    for code, error in ranks.run(trained, timeout=300).values():
        forward = code[0]
        assert "_c10d_functional.all_reduce_.default(" in forward
        assert "copy" not in forward.partition("def call(")[2].partition("return (")[0]
        assert error < 1e-4


def copies() -> dict[str, bool]:
    """On a rank: whether Inductor's code runs a kernel between the product and the all-reduce."""
    import re

    import torch
    import torch.distributed as dist
    from torch._inductor.utils import run_and_get_code

    def whole(x, w):
        y = x @ w
        dist.all_reduce(y)
        return x + y

    def part(x, w):
        y = x @ w
        dist.all_reduce(y[:2])
        return x + y

    def transposed(x, w):
        y = x @ w
        dist.all_reduce(y.t())
        return x + y

    def read_before(x, w):
        y = x @ w
        z = y.sin()
        dist.all_reduce(y)
        return z + y

    found = {}
    for program in (whole, part, transposed, read_before):
        torch._dynamo.reset()
        with torch.no_grad():
            _, code = run_and_get_code(torch.compile(program), torch.ones(ROWS, DIM), torch.ones(DIM, DIM))
        before = code[0].partition("def call(")[2].partition("all_reduce_.default(")[0]
        found[program.__name__] = bool(re.search(r"(cpp|triton)_.*fused", before))
    return found


@pytest.mark.slow
def test_a_part_a_transpose_and_an_earlier_reader_cost_a_copy(ranks):
    for found in ranks.run(copies, timeout=300).values():
        assert found == {"whole": False, "part": True, "transposed": True, "read_before": True}

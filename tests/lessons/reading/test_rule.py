"""Lesson 03's rule at another size, and in training: a collective in place costs no copy, and keeps its numbers."""

from __future__ import annotations

import re

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


# a line between a product and the end of a function, as the lesson has none, and what a kernel before the collective
# is: no copy, or one that the line asks for
LINES = {
    "y = y.sin(); dist.all_reduce(y[:2])": None,
    "y = y.double(); dist.all_reduce(y)": None,
    "y = F.torch.cat([y, x]); dist.all_reduce(y)": "asked for",
    "y = y.t().contiguous(); dist.all_reduce(y)": "asked for",
    "y = y[F.torch.tensor([3, 1, 0, 2])]; dist.all_reduce(y)": "asked for",
}
ASKED = re.compile("_(cat|clone|index)_")


def stored_as_loaded() -> dict[str, str | None]:
    """On a rank: whether a kernel before the all-reduce stores a value as it was loaded, and who asks, by line."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch._inductor.utils import run_and_get_code

    from course.reading.log import kernels_before

    found = {}
    for line in LINES:
        names = {"dist": dist, "F": F}
        exec(f"def program(x, w):\n    y = x @ w\n    {line}\n    return y + 1", names)
        torch._dynamo.reset()
        with torch.no_grad():
            _, code = run_and_get_code(
                torch.compile(names["program"]), torch.ones(16, 64), torch.ones(64, 64)
            )
        found[line] = None
        for kernel, steps in kernels_before(code[0], "all_reduce_.default(").items():
            loaded = {step.split(" = ")[0] for step in steps if step.endswith("loadu")}
            if any(step == f"{name}.store" for step in steps for name in loaded):
                found[line] = "asked for" if ASKED.search(kernel) else "extra"
    return found


@pytest.mark.slow
def test_a_kernel_that_stores_a_value_as_it_was_loaded_copies_and_its_name_has_who_asks_for_it(ranks):
    assert ranks.run(stored_as_loaded, timeout=400)[0] == LINES

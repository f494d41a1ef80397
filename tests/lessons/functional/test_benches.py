"""Lesson 02: each bench answers a click with other values, and its prediction has the right option for each result."""

from __future__ import annotations

import time

import lesson_cells
import pytest

import labkit
from course.functional import inside, pictures
from labkit.pace import patience
from labkit.study.bench import Bench

pytestmark = pytest.mark.slow

LESSON = "02_inplace_vs_functional"
CELLS = (
    "cell-03-l02", "cell-05-l02", "cell-07-l02", "edges-bench", "cell-19-l02", "one-run", "one-bench", "blocks-run",
    "blocks-bench",
)  # fmt: skip


@pytest.fixture(scope="module")
def cells():
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        names = {"labkit": labkit, "inside": inside, "pictures": pictures, "Bench": Bench}
        yield lesson_cells.run(LESSON, *CELLS, ranks=ranks, **names)


def click(bench, **values):
    """Choose values and the first option, click, and wait; returns what the bench says and its picture."""
    for name, value in values.items():
        bench.controls[name].value = value
    if bench._guess.options:
        bench._guess.value = bench._guess.options[0]
    bench._go.click()
    deadline = time.monotonic() + patience(120)
    while bench._worker is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert bench._worker is None and bench.error is None, bench.error
    assert bench.tries[-1].values == bench.tries[-1].values | values
    return bench._said.value, bench._picture.value


def test_the_graphs_that_were_changed_by_a_pass(cells):
    said, page = click(cells["edges_bench"], program="in place, declared", a_pass="latest first")
    assert "it was each rank its own" in said and page.count("sum + 1") == 1  # beside the first try
    assert "all_reduce_ takes mul" in page


@pytest.mark.parametrize(
    ("collective", "form", "tensor", "ended"),
    [
        ("all_reduce", "functional", "the input", "one graph"),
        ("all_reduce", "async_op", "made by the program", "breaks"),
        ("all_gather", "functional", "the input", "no such form"),
    ],
)
def test_one_collective_compiled(cells, collective, form, tensor, ended):
    said, page = click(cells["one_bench"], collective=collective, form=form, tensor=tensor)
    assert (said.startswith("<b>yes") and ended == "one graph") or f"it was {ended}" in said
    assert ("cpp_fused_all_reduce_0" in page) or ended != "one graph"


@pytest.mark.parametrize(
    ("form", "mode", "on", "replicated", "blocks", "n", "ended"),
    [
        ("in place", "compiled", "the whole loss", "none", 1, 3, "n times"),
        ("in place", "eager", "1/n of it", "none", 1, 4, "1/n"),
        ("in place", "eager", "the whole loss", "none", 2, 2, "other"),
        ("functional", "eager", "1/n of it", "gain and bias", 1, 2, "other"),
        ("functional", "compiled", "1/n of it", "gain and bias, gradients summed", 2, 4, "right"),
    ],
)
def test_a_step_of_one_or_two_blocks(cells, form, mode, on, replicated, blocks, n, ended):
    bench = cells["blocks_bench"]
    said, page = click(
        bench, form=form, mode=mode, backward_on=on, replicated=replicated, blocks=blocks, number_of_ranks=n
    )
    assert said.startswith("<b>yes") if ended == "right" else f"it was {ended}" in said
    assert f">{ended}<" in page

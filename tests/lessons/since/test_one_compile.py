"""Lesson 17 outside of its examples: another model, other groups, gradients, three ranks; its figures."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import labkit
from course.since import figures
from labkit import lessons
from labkit.report import Report

program = lessons.program("since")


def gated(dim: int, on: bool) -> tuple[str, float]:
    """On a rank: graphs of a training step of another model, and the largest error of its gradients."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(dim, 4 * dim), nn.Linear(dim, 4 * dim)
            self.down = nn.Linear(4 * dim, dim)

        def forward(self, x):
            return self.down(torch.sigmoid(self.gate(x)) * self.up(x)) + x

    torch.manual_seed(1)
    model, x = Gated(), torch.randn(2, 5, dim)
    model(x).square().sum().backward()
    alone = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, program.pairs(), plan)
    with program.switched(on):
        graphs, _ = program.captured(model, x, training=True)
    found = [p.grad.full_tensor() for p in model.parameters()]
    errors = [float((a - b).abs().max()) for a, b in zip(found, alone, strict=True)]
    return "\n\n".join(map(program.plain_text, graphs)), max(errors)


@pytest.mark.slow
def test_another_model_trains_with_one_graph_and_the_gradients_of_one_process():
    with labkit.Ranks(4, device="cpu", backend="gloo", quiet=True, timeout=240) as four:
        for on, graphs in ((False, 2), (True, 1)):
            texts, errors = zip(*four.run(gated, 6, on).values(), strict=True)
            assert len(set(texts)) == graphs
            assert max(errors) < 1e-4


def second_sum(kind: str, on: bool) -> float:
    """On a rank: a compiled maximum over all ranks, after a call over this rank alone."""
    small, large = program.own_group(), dist.group.WORLD
    if kind == "mesh.get_group()":
        shape = (dist.get_world_size(), 1)
        small = program.init_device_mesh("cpu", shape, mesh_dim_names=("a", "b"))["b"]
        large = program.line_mesh()
    torch.compiler.reset()
    with program.switched(on), torch.no_grad():
        taken = (lambda g: g.get_group()) if kind == "mesh.get_group()" else (lambda g: g)
        run = torch.compile(
            lambda x, g: program.funcol.all_reduce(x + 1, "max", taken(g)), backend="aot_eager"
        )
        x = torch.full((3, 2), float(dist.get_rank()))
        run(x, small)
        return float((run(x, large) + 0).max())


@pytest.mark.slow
def test_with_the_switch_the_first_group_stays_and_that_of_a_mesh_does_not(three):
    assert list(three.run(second_sum, "group", False).values()) == [3.0, 3.0, 3.0]
    assert list(three.run(second_sum, "group", True).values()) == [1.0, 2.0, 3.0], "the first group's"
    assert list(three.run(second_sum, "mesh.get_group()", True).values()) == [3.0, 3.0, 3.0]


def gradient_of(kind: str, on: bool) -> float | str:
    """On a rank: the gradient of a compiled sum over all ranks, or the name of the error of its first call."""
    held = program.line_mesh() if kind == "mesh" else dist.group.WORLD
    torch.compiler.reset()
    x = torch.full((3,), 1.0 + dist.get_rank(), requires_grad=True)
    run = torch.compile(
        lambda x, g: program.funcol.all_reduce(x * 2, "sum", g).square().sum(), backend="aot_eager"
    )
    try:
        with program.switched(on):
            run(x, held).backward()
    except TypeError as error:
        return str(error)
    return float(x.grad[0])


@pytest.mark.slow
def test_with_the_switch_and_gradients_a_group_is_an_error_and_a_mesh_is_not(three):
    right = set(three.run(gradient_of, "group", False).values())
    assert right == set(three.run(gradient_of, "mesh", True).values()) and len(right) == 1
    assert all("cannot pickle" in said for said in three.run(gradient_of, "group", True).values())


def test_figures_say_in_words_what_they_show():
    rows = [("a", 2, "off", 2), ("a", 2, "on", 1), ("b", 2, "off", 2), ("b", 2, "on", 2)]
    graphs = pd.DataFrame(rows, columns=["program", "ranks", "switch", "graphs"])
    said = figures.figure(Report("one_compile", "", "gloo · cpu", {"graphs": graphs}))
    assert "Of 2 programs whose graphs differ by rank, the switch makes 1 equal" in said.summary
    point = {"store": "aot_compile", "form": "mesh", "switch": "on", "outcome": "right"}
    carried = pd.DataFrame([point | {"rank": rank} for rank in (0, 1)])
    said = figures.portability(carried, "gloo · cpu").summary
    assert "aot_compile, mesh, on: rank 0 right" in said and said.startswith("In 1 of 1 ways every rank runs")

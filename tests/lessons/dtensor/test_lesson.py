"""Lesson 10 outside its example: three ranks, other sizes and another model; norms and clipping; recorded outputs."""

from __future__ import annotations

import ast
import json

import lesson_cells
import nbformat
import pandas as pd
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import labkit
from labkit import files, lessons

LESSON = "10_tensor_parallel_training"
program = lessons.program("dtensor")
SIZES = 24, 3, 12  # not the lesson's


def cells():
    """The program, and the functions that other cells of the lesson define; nothing of them is run."""
    space = lesson_cells.copied(LESSON) | {"labkit": labkit, "pd": pd, "DIM": 0, "BLOCKS": 0, "TOKENS": 0}
    notebook = nbformat.read(files.ours("notebooks") / f"{LESSON}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.id in ("tp-step", "tp-multiples", "tp-forms"):
            body = ast.parse(cell.source).body
            kept = [node for node in body if isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(kept, []), cell.id, "exec"), space)
    return space


def one_process(dim, blocks, tokens):
    whole, x = program.model(dim, blocks), program.sample(dim, tokens).requires_grad_()
    whole(x).square().mean().backward()
    return {"input": x.grad, **{name: p.grad for name, p in whole.named_parameters()}}


@pytest.mark.slow
def test_what_the_lesson_calls_right_is_one_process_s_gradient(three):
    names, right = cells(), one_process(*SIZES)
    whole = dict.fromkeys(("split weights", "norms", "input"), "right")
    expected = {
        "replicated": (
            whole,
            {"split weights": "3 x right"} | dict.fromkeys(("norms", "input"), "sums to 3 x right"),
        ),
        "summed": (dict.fromkeys(whole, "wrong"), whole | dict.fromkeys(("norms", "input"), "sums to right")),
    }
    expected["summed, f before it"] = expected["replicated"]
    for loss, mode in (
        ("replicated", "same"),
        ("replicated", "compiled"),
        ("summed", "same"),
        ("summed, f before it", "same"),
    ):
        for form, how in names["FORMS"].items():
            steps = three.run(names["one_step"], how, SIZES, names["LOSSES"][loss], names[mode])
            said = names["kinds"]([gradients for _, gradients in steps.values()], right)
            assert said == expected[loss][form == "functional"], (loss, mode, form)


def norms_of_gradients():
    """On a rank: the norm of all gradients from plain parts, and from DTensors."""
    where, found = init_device_mesh("cpu", (labkit.ranks.here().world_size,)), []
    mine = program.split(program.model(*SIZES[:2]), where, program.placed_pair)
    mine(program.sample(SIZES[0], SIZES[2])).square().mean().backward()
    for name, p in mine.named_parameters():
        cut = program.CUT.get(name.split(".")[1])
        kind = program.Replicate() if cut is None else program.Shard(cut)
        found.append(program.DTensor.from_local(p.grad + 0, where, [kind], run_check=False))
    plain = nn.utils.clip_grad_norm_(mine.parameters(), 1e9).item()
    mixed = [found[0].to_local(), *found[1:]]
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        nn.utils.get_total_norm(mixed)
    return plain, nn.utils.get_total_norm(found).full_tensor().item()


def test_the_norm_of_all_gradients_needs_placements(three):
    right = one_process(*SIZES)
    expected = nn.utils.get_total_norm([g for name, g in right.items() if name != "input"]).item()
    found = three.run(norms_of_gradients).values()
    assert len({plain for plain, _ in found}) == 3
    assert all(placed == pytest.approx(expected, rel=1e-4) for _, placed in found)


def clipped_plan(largest):
    """On a rank: the plan's gradients, clipped through DTensors of the plain norms; their norm before and after."""
    mesh = init_device_mesh("cpu", (labkit.ranks.here().world_size,))

    def replicated(t):
        return program.DTensor.from_local(t, mesh, [program.Replicate()], run_check=False)

    mine = program.planned(program.model(*SIZES[:2]), mesh)
    mine(program.sample(SIZES[0], SIZES[2])).square().mean().backward()
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        nn.utils.clip_grad_norm_(mine.parameters(), largest)
    placed = []
    for p in mine.parameters():
        if not isinstance(p, program.DTensor):
            p, grad = nn.Parameter(replicated(p.detach())), p.grad
            p.grad = replicated(grad)
        placed.append(p)
    before = nn.utils.clip_grad_norm_(placed, largest).full_tensor().item()
    gradients = [p.grad if isinstance(p, program.DTensor) else replicated(p.grad) for p in mine.parameters()]
    after = nn.utils.get_total_norm(gradients).full_tensor().item()
    for block in mine:  # no way around it: as DTensors, the norms' weights do not meet plain tensors
        block.norm1.weight = nn.Parameter(replicated(block.norm1.weight.detach()))
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        mine(program.sample(SIZES[0], SIZES[2]))
    return before, after


def test_the_plan_is_clipped_through_dtensors_of_its_norms(three):
    right = one_process(*SIZES)
    expected = nn.utils.get_total_norm([g for name, g in right.items() if name != "input"]).item()
    for before, after in three.run(clipped_plan, 0.1 * expected).values():
        assert (before, after) == (pytest.approx(expected, rel=1e-4), pytest.approx(0.1 * expected, rel=1e-3))


class Gated(nn.Module):
    """Another model than the lesson's: a LayerNorm, a gated MLP of three weights, a bias after the pair."""

    def __init__(self, dim, enter=program.same, leave=program.same, rank=0, n=1):
        super().__init__()
        make = torch.Generator().manual_seed(3)
        gate, up = (torch.randn(2 * dim, dim, generator=make) for _ in range(2))
        down = torch.randn(dim, 2 * dim, generator=make)
        self.norm, self.bias = nn.LayerNorm(dim), nn.Parameter(torch.randn(dim, generator=make))
        self.gate, self.up = (nn.Parameter(w.chunk(n)[rank].clone()) for w in (gate, up))
        self.down = nn.Parameter(down.chunk(n, 1)[rank].clone())
        self.enter, self.leave = enter, leave

    def forward(self, x):
        h = self.enter(self.norm(x))
        hidden = torch.tanh(h @ self.gate.T) * (h @ self.up.T)
        return x + self.leave(hidden @ self.down.T) + self.bias


def gated(backend, summed):
    mesh = init_device_mesh("cpu", (labkit.ranks.here().world_size,))
    rank, n = mesh.get_local_rank(), mesh.size()
    f, g = program.placed_pair(mesh)
    x = torch.randn(n * 3, 10, generator=torch.Generator().manual_seed(1))
    whole, mine = Gated(10), Gated(10, f, g, rank, n)
    one, two = (x.clone().requires_grad_() for _ in range(2))
    whole(one).square().mean().backward()

    def loss_of(x):
        y = mine(x)
        return f(y).chunk(n)[rank].square().sum() / y.numel() if summed else y.square().mean()

    torch.compiler.reset()
    torch.compile(loss_of, backend=backend, fullgraph=True)(two).backward()
    errors = [float((two.grad - one.grad).abs().max())]
    for (name, p), q in zip(mine.named_parameters(), whole.parameters(), strict=True):
        cut = {"gate": 0, "up": 0, "down": 1}.get(name)
        piece = q.grad if cut is None else q.grad.chunk(n, cut)[rank]
        errors.append(float((p.grad - piece).abs().max() / q.grad.abs().max()))
    return max(errors)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_f_and_g_are_right_for_another_model(three, backend):
    for summed in (False, True):
        assert max(three.run(gated, backend, summed).values()) < 1e-4, summed


@pytest.mark.slow
def test_the_installed_checker_says_what_was_saved():
    pytest.importorskip("spmd_types")
    from tools.tensor_parallel import types

    assert (
        types()["answers"] == json.loads(files.ours("data/captured/spmd_types.json").read_text())["answers"]
    )


@pytest.mark.slow
def test_the_recorded_jobs_are_what_four_ranks_compute():
    from tools.tensor_parallel import jobs

    assert jobs() == json.loads(files.ours("data/captured/tensor_parallel_jobs.json").read_text())

"""Lesson 10's cells: gradients against one process by form, loss, mode and ranks; placements; checkpoints; types."""

from __future__ import annotations

import ast
import functools
import json
import logging

import lesson_cells
import nbformat
import pandas as pd
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import labkit
from labkit import files, lessons, torch_compat

LESSON = "10_tensor_parallel_training"
program = lessons.program("dtensor")
SIZES = 24, 3, 24  # not the lesson's
MODES = ("eager", "compiled")


@pytest.fixture(scope="module", params=[2, 4])
def group(request):
    with labkit.Ranks(request.param, device="cpu", backend="gloo", timeout=300, quiet=True) as ranks:
        yield ranks


def cells(*ids):
    """The program, and the functions that other cells of the lesson define; nothing of them is run."""
    space = lesson_cells.copied(LESSON) | {"labkit": labkit, "pd": pd, "DIM": 0, "BLOCKS": 0, "TOKENS": 0}
    notebook = nbformat.read(files.ours("notebooks") / f"{LESSON}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.id in ("tp-step", "tp-multiples", "tp-forms", *ids):
            body = ast.parse(cell.source).body
            kept = [node for node in body if isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(kept, []), cell.id, "exec"), space)
    return space


def one_process(dim, blocks, tokens):
    whole, x = program.model(dim, blocks), program.sample(dim, tokens).requires_grad_()
    whole(x).square().mean().backward()
    return {"input": x.grad, **{name: p.grad for name, p in whole.named_parameters()}}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", ["replicated", "summed", "summed, f before it"])
def test_what_the_lesson_calls_right_is_one_process_s_gradient(group, loss, mode):
    """Two and four ranks, other sizes than the lesson's, both loss conventions, eager and compiled."""
    names, n = cells(), len(group)
    right, found = one_process(*SIZES), {}
    for form, how in names["FORMS"].items():
        prepared = names["compiled"] if mode == "compiled" else names["same"]
        steps = group.run(names["one_step"], how, SIZES, names["LOSSES"][loss], prepared)
        found[form] = names["kinds"]([gradients for _, gradients in steps.values()], right)
    whole = dict.fromkeys(("split weights", "norms", "input"), "right")
    if loss == "summed":
        assert found["functional"] == {
            "split weights": "right",
            "norms": "sums to right",
            "input": "sums to right",
        }
        assert all(set(found[form].values()) == {"wrong"} for form in found if form != "functional")
    else:
        assert found["f and g"] == found["plan"] == found["plan, one f"] == whole
        assert set(found["functional"].values()) == {f"{n} x right", f"sums to {n} x right"}


def test_only_the_last_leave_gets_the_whole_gradient_without_f_and_g(group):
    names = cells()
    names.update(zip(("DIM", "BLOCKS", "TOKENS"), SIZES, strict=True))
    expected = names["arriving"](program.model(*SIZES[:2]), program.sample(SIZES[0], SIZES[2]))
    for found in group.run(names["arriving_on_a_rank"]).values():
        factors = [program.multiple(*pair) for pair in zip(found, expected, strict=True)]
        assert factors == [1.0, *[None] * (2 * SIZES[1] - 1)]


def test_the_plan_sends_the_gradient_of_each_of_q_k_and_v(group):
    names = cells()
    names.update(zip(("DIM", "BLOCKS", "TOKENS"), SIZES, strict=True))
    sent = {form: group.run(names["traffic"], how)[0] for form, how in names["FORMS"].items()}
    once = {"forward": 2 * SIZES[1], "backward": 2 * SIZES[1]}
    assert sent["f and g"] == sent["plan, one f"] == once
    assert sent["plan"] == {"forward": 2 * SIZES[1], "backward": 4 * SIZES[1]}


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


def test_the_norm_of_all_gradients_needs_placements(group):
    right = one_process(*SIZES)
    expected = nn.utils.get_total_norm([g for name, g in right.items() if name != "input"]).item()
    found = group.run(norms_of_gradients).values()
    assert len({plain for plain, _ in found}) == len(group)
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


def test_the_plan_is_clipped_through_dtensors_of_its_norms(group):
    right = one_process(*SIZES)
    expected = nn.utils.get_total_norm([g for name, g in right.items() if name != "input"]).item()
    for before, after in group.run(clipped_plan, 0.1 * expected).values():
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


def gated(mode, summed):
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
    backend = {"compiled": "aot_eager", "inductor": "inductor"}.get(mode)
    run = torch.compile(loss_of, backend=backend, fullgraph=True) if backend else loss_of
    run(two).backward()
    errors = [float((two.grad - one.grad).abs().max())]
    for (name, p), q in zip(mine.named_parameters(), whole.parameters(), strict=True):
        cut = {"gate": 0, "up": 0, "down": 1}.get(name)
        piece = q.grad if cut is None else q.grad.chunk(n, cut)[rank]
        errors.append(float((p.grad - piece).abs().max() / q.grad.abs().max()))
    return max(errors)


@pytest.mark.slow
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("mode", [*MODES, "inductor"])
def test_f_and_g_are_right_for_another_model(group, mode, summed):
    assert max(group.run(gated, mode, summed).values()) < 1e-4


def mesh():
    return init_device_mesh("cpu", (2,))


def moves():
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # gloo has no all-to-all for it
    x, where, names = 3 * torch.arange(1.0, 17).view(4, 4), mesh(), program.PLACEMENTS
    return {(start, end): program.move(x, where, start, end) for start in names for end in names}


@pytest.fixture(scope="module")
def moved(ranks):
    return ranks.run(moves)


def test_every_value_and_gradient_is_that_of_the_whole_matrix(moved):
    for found in moved.values():
        right = {pair: one["right"] for pair, one in found.items() if "refused" not in one}
        refused = 1 if torch_compat.within(torch.__version__, since="2.14") else 3  # changes to a partial sum
        assert all(right.values()) and len(right) == len(found) - refused


@pytest.mark.parametrize(
    ("start", "end", "forward", "backward", "partial"),
    [
        ("S(0)", "R", ["all_gather_into_tensor"], [], ["reduce_scatter_tensor"]),
        ("P", "R", ["all_reduce"], [], []),
        ("R", "R", [], [], ["all_reduce"]),
        ("P", "S(1)", ["reduce_scatter_tensor"], ["all_gather_into_tensor"], None),
        ("R", "S(0)", [], ["all_gather_into_tensor"], None),
    ],
)
def test_a_redistribution_costs_what_it_must(moved, start, end, forward, backward, partial):
    row = moved[0][start, end]
    assert (row["forward"], row["backward"], row.get("backward, partial")) == (forward, backward, partial)


def edges():
    """Whole numbers in Partial and Shard: what each rank holds of a 4 by 4 matrix."""
    x, where = 3 * torch.arange(1.0, 17).view(4, 4), mesh()
    return {name: program.place(x, where, name).to_local().tolist() for name in program.PLACEMENTS}


def test_ranks_hold_what_the_placement_says(ranks):
    x = [[3.0 * (4 * i + j + 1) for j in range(4)] for i in range(4)]
    zero, one = ranks.run(edges).values()
    assert zero["R"] == one["R"] == x and one["S(0)"] == x[2:] and zero["S(1)"] == [row[:2] for row in x]
    assert zero["P"] == [[v / 3 for v in row] for row in x]


@pytest.mark.slow
def test_a_checkpoint_with_placements_loads_on_other_ranks_and_plain_parts_do_not(ranks, tmp_path):
    names = cells("tp-save")
    run = functools.partial(names["save_or_load"], sizes=(24, 1, 12))
    with labkit.Ranks(4, device="cpu", backend="gloo", quiet=True) as four:
        said = {}
        for saved, loaded in (("plain", "plain"), ("DTensor", "plain"), ("DTensor", "DTensor")):
            folder = str(tmp_path / f"{saved} {loaded}")
            ranks.run(run, "save", saved, folder)
            said[saved, loaded] = [
                list(each.run(run, "load", loaded, folder).values()) for each in (ranks, four)
            ]
    assert {answer for answers in said["DTensor", "DTensor"] for answer in answers} == {"right"}
    on_two, on_four = said["plain", "plain"]
    assert all("weights wrong" in answer for answer in on_two) and on_two[0] != on_two[1]
    assert "Size mismatch" in "".join(on_four)
    assert all("Size mismatch" in "".join(answers) for answers in said["DTensor", "plain"])


def test_gradients_on_a_mesh_of_two_axes(group):
    if len(group) == 4:
        names = cells("tp-mesh")
        found = group.run(names["two_axes"], (24, 1, 12)).values()
        right = {name: g for name, g in one_process(24, 1, 12).items() if name != "input"}
        for pair in (list(found)[:2], list(found)[2:]):
            kinds = names["kinds"]([gradients for _, gradients in pair], right)
            assert kinds["split weights"] == kinds["norms"] == "right"


SAID = {"no f": "[I, V]", "no g": "[P, I]", "functional for g": "[R, I]", "bias before g": "[V, V, I]"}


def test_the_saved_type_errors_are_those_that_the_lesson_explains():
    saved = json.loads(files.ours("data/captured/spmd_types.json").read_text())["answers"]
    assert tuple(saved) == program.FAULTS and saved["none"].startswith("no error")
    assert all(f"Found types: {types}" in saved[fault] for fault, types in SAID.items())


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

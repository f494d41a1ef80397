"""Lesson 10b outside its example: forms with three ranks and both losses, what is sent at other sizes, recompiles."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import _collective_utils as estimate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

import labkit
from course.dtensor_compiled.logs import LOGS
from labkit import lessons

program = lessons.program("dtensor_compiled")


def recompiles(work):
    """What TORCH_LOGS=recompiles writes while `work` runs, without the head and the stack of each message."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_LOGS_OUT"] = f"{folder}/log"
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # the terminal gets a copy
                torch._logging.set_logs(recompiles=True)
            work()
        finally:
            del os.environ["TORCH_LOGS_OUT"]
            torch._logging.set_logs()
        lines = Path(folder, "log").read_text().splitlines()
    said = [line.partition("[__recompiles] ")[2] for line in lines]
    kept = [line for line in said if line.startswith("Recompiling") or line.lstrip().startswith("- 0/")]
    return "\n".join(kept)


class Normed(torch.nn.Module):
    """Another model than the lesson's: a residual and a norm whose weight every rank holds whole."""

    def __init__(self, stack, dim):
        super().__init__()
        self.norm, self.stack = torch.nn.RMSNorm(dim), stack

    def forward(self, x):
        return x + self.stack(self.norm(x))


def losses(y, kind, rank, size):
    """One replicated loss; or a loss of each rank's own, of every size-th token, whose sum over the ranks is meant."""
    return y.square().sum() if kind == "replicated" else y[rank::size].square().sum()


class Ends(torch.nn.Module):
    """A model whose loss is a sum over the ranks: the gradient that arrives at its end is a part."""

    def __init__(self, inner, mesh, form):
        super().__init__()
        self.inner, self.mesh, self.form = inner, mesh, form

    def forward(self, x):
        y = self.inner(x)
        if self.form == "explicit":
            return program.f(y, self.mesh.get_group())
        whole = DTensor.from_local(y, self.mesh, [Replicate()], run_check=False)
        return whole.to_local(grad_placements=[Partial()])


def errors(form, kind, compiled, ends=True):
    me, dim, mesh = labkit.ranks.here(), 24, program.tp_mesh()
    stack, x = program.whole_and_input(dim, 2, 9)
    mine = program.FORMS[form](stack, mesh)
    whole, model = Normed(stack, dim), Normed(mine, dim)
    again, y = x.detach().requires_grad_(), whole(x)
    if kind == "replicated":
        losses(y, kind, 0, 1).backward()
    else:
        sum(losses(y, kind, rank, me.world_size) for rank in range(me.world_size)).backward()
    torch.compiler.reset()
    call = Ends(model, mesh, form) if kind == "summed" and ends else model
    call = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    losses(call(again), kind, me.rank, me.world_size).backward()
    right = [w.grad.chunk(me.world_size, i % 2)[me.rank] for i, w in enumerate(stack.parameters())]
    found = [getattr(p.grad, "to_local", lambda p=p: p.grad)() for p in mine.parameters()]
    found, right = [*found, again.grad, model.norm.weight.grad], [*right, x.grad, whole.norm.weight.grad]
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["explicit", "plan"])
def test_each_gradient_is_that_of_one_process_for_both_losses_eager_and_compiled(three, form):
    for kind in ("replicated", "summed"):
        for compiled in (False, True):
            found = three.run(errors, form, kind, compiled, timeout=300)
            assert max(found.values()) < 1e-4, (kind, compiled)
    wrong = three.run(errors, form, "summed", False, ends=False)
    assert min(wrong.values()) > 0.1, "the lesson's g is for a replicated loss"


def placed(dim, tokens):
    """A gated layer after an open Partial: what is called, and what DTensor's model estimates."""
    mesh = program.tp_mesh()

    def local(shape, placement):
        return DTensor.from_local(torch.zeros(shape), mesh, [placement], run_check=False)

    h = local((tokens, dim), Partial())
    up = local((dim, 4 * dim // mesh.size()), Shard(1))
    with torch.no_grad(), CommDebugMode() as comm:
        F.silu(h @ up)
    gathers = any("all_gather" in str(op) for op, n in comm.get_comm_counts().items() if n)
    model = estimate.MeshTopoInfo.build_from_mesh(mesh)
    gib = 4 / 2**30
    all_reduce = estimate.allreduce_cost(tokens * dim * gib, model, 0)
    return gathers, estimate.allgather_cost(4 * dim * dim * gib, model, 0) < all_reduce


@pytest.fixture(scope="module")
def silent():
    """Four ranks that send nothing."""
    with labkit.Ranks(4, device="cpu", backend="fake", quiet=True) as ranks:
        yield ranks


def test_an_open_partial_gathers_the_weight_where_the_model_says_so(silent):
    for size, gathered in {(64, 8): True, (1024, 64): False, (2048, 8): False, (256, 4096): True}.items():
        assert silent.run(placed, *size, ranks=0)[0] == (gathered, gathered), size


def recompiled(plan, sizes):
    torch.compiler.reset()
    stack, _ = program.whole_and_input(256, 2, 2)
    mine = torch.compile(program.planned(stack, program.tp_mesh(), plan), backend="aot_eager", fullgraph=True)

    def run():
        with torch.no_grad():
            for tokens in sizes:
                mine(torch.zeros(tokens, 256))

    return recompiles(run)


@pytest.mark.slow
def test_only_an_open_partial_makes_a_guard_of_the_sizes():
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as silent:
        run = functools.partial(silent.run, recompiled, ranks=0, timeout=300)
        opened, local = (run(plan, (64, 128, 640))[0] for plan in (program.OPEN, program.LOCAL))
    assert "_select_min_redistribute_cost" in opened and "_select_min_redistribute_cost" not in local
    assert local.count("Recompiling") == 1
    assert "34.607414222037946" in opened and "34.607414222037946" in LOGS["C"]


def called(dim, depth, tokens):
    """What a forward and a backward call, where local tensors go from MLP to MLP."""
    stack, x = program.whole_and_input(dim, depth, tokens)
    mine, counts = program.planned(stack, program.tp_mesh()), []
    with CommDebugMode() as forward:
        y = mine(x)
    with CommDebugMode() as backward:
        y.square().mean().backward()
    for comm in (forward, backward):
        counts.append({str(op).rpartition(".")[2]: n for op, n in comm.get_comm_counts().items()})
    return counts, any(p.grad.placements[0].is_partial() for p in mine.parameters())


def test_local_tensors_between_the_mlps_are_all_reduced_whatever_the_sizes(silent):
    for dim, depth, tokens in ((16, 2, 1024), (64, 3, 8), (256, 1, 4096)):
        counts, partial = silent.run(called, dim, depth, tokens, ranks=0)[0]
        assert (counts, partial) == ([{"all_reduce": depth}, {"all_reduce": depth}], False)


class Gated(torch.nn.Module):
    """gate and up share an input."""

    def __init__(self, dim):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(dim, 2 * dim) for _ in range(2))
        self.down = torch.nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def of_gated(dim, tokens, one_f):
    """Collectives of a forward and a backward of two gated MLPs, and the largest error of a gradient."""
    torch.manual_seed(0)
    whole, mesh = torch.nn.Sequential(Gated(dim), Gated(dim)), program.tp_mesh()
    mine, x = copy.deepcopy(whole), torch.randn(tokens, dim, requires_grad=True)
    whole(x).square().mean().backward()
    again, counts = x.detach().requires_grad_(), []
    for mlp in mine:
        plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(mlp, mesh, plan)
        if one_f:
            share = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
            parallelize_module(mlp, mesh, share)
    with CommDebugMode() as forward:
        y = mine(again)
    with CommDebugMode() as backward:
        y.square().mean().backward()
    for comm in (forward, backward):
        counts.append({str(op).rpartition(".")[2]: n for op, n in comm.get_comm_counts().items()})
    pairs = [
        (again.grad, x.grad),
        *zip(
            (p.grad.full_tensor() for p in mine.parameters()),
            (p.grad for p in whole.parameters()),
            strict=True,
        ),
    ]
    return counts, max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def test_layers_that_share_an_input_sum_its_gradient_once_each_or_with_one_f_once(three):
    for size in ((24, 8), (48, 256)):
        for one_f, backward in ((False, 4), (True, 2)):
            for counts, error in three.run(of_gated, *size, one_f).values():
                assert counts == [{"all_reduce": 2}, {"all_reduce": backward}] and error < 1e-4


def of_batches(batches, dynamic, gathers):
    """Compiled against eager for each batch of rows: whether loss and gradients agree."""
    mesh, agree = program.tp_mesh(), []
    values = torch.linspace(-1, 2, max(batches) * 4).view(-1, 4)

    def loss(x, w):
        if gathers:
            return torch.tanh(x @ w).full_tensor().sum()
        return (torch.relu(x @ w).sum() / x.numel()).full_tensor()

    torch.compiler.reset()
    run = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for n in batches:
        found = []
        for call in (run, loss):
            x = distribute_tensor(values[:n], mesh, [Shard(0)], src_data_rank=None)
            w = distribute_tensor(values[:3].T, mesh, [Replicate()], src_data_rank=None).requires_grad_()
            y = call(x, w)
            y.backward()
            found.append((y.detach() + 0, w.grad.full_tensor() + 0))
        agree.append([torch.allclose(a, b, rtol=1e-4) for a, b in zip(*found, strict=True)])
    return agree


@pytest.mark.slow
def test_the_whole_size_of_a_dtensor_is_not_guarded_while_it_is_a_constant(three):
    """Other sizes and another program than the lesson's; right where rows are padded, or a symbol."""
    right, wrong = [True, True], [False, False]

    def said(*batches, dynamic=None, gathers=False):
        return three.run(of_batches, batches, dynamic, gathers, timeout=300).same()

    assert said(12, 11) == said(12, 11, dynamic=False) == [right, wrong]
    assert said(9, 12, 11, dynamic=False) == [right, right, wrong]
    assert (
        said(9, 12, 9) == said(12, 9, 12, dynamic=False) == [right] * 3
    )  # padded: all that the lesson proposes
    for gathers in (False, True):
        assert said(12, 11, 13, 9, dynamic=True, gathers=gathers) == [right] * 4

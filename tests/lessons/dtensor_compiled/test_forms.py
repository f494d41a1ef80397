"""Lesson 10b: its forms against one process, what an open Partial sends, and recompiles; on other models and sizes."""

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
from course.dtensor_compiled.exercises.traffic import cheaper
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


def errors(form, kind, compiled, normed):
    me, dim, mesh = labkit.ranks.here(), 24, program.tp_mesh()
    stack, x = program.whole_and_input(dim, 2, 8)
    mine = program.FORMS[form](stack, mesh)
    whole, model = (Normed(part, dim) if normed else part for part in (stack, mine))
    again, y = x.detach().requires_grad_(), whole(x)
    if kind == "replicated":
        losses(y, kind, 0, 1).backward()
    else:
        sum(losses(y, kind, rank, me.world_size) for rank in range(me.world_size)).backward()
        model = Ends(model, mesh, form)
    torch.compiler.reset()
    call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    losses(call(again), kind, me.rank, me.world_size).backward()
    right = [w.grad.chunk(me.world_size, i % 2)[me.rank] for i, w in enumerate(stack.parameters())]
    found = [getattr(p.grad, "to_local", lambda p=p: p.grad)() for p in mine.parameters()]
    found, right = [*found, again.grad], [*right, x.grad]
    if normed:
        norm = getattr(model, "inner", model).norm
        found, right = [*found, norm.weight.grad], [*right, whole.norm.weight.grad]
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["explicit", "plan"])
@pytest.mark.parametrize("world", [2, 4])
def test_each_gradient_is_that_of_one_process_for_both_losses_eager_and_compiled(form, world):
    with labkit.Ranks(world, device="cpu", backend="gloo", quiet=True) as ranks:
        for kind in ("replicated", "summed"):
            for compiled in (False, True):
                for normed in (False, True):
                    found = ranks.run(errors, form, kind, compiled, normed, timeout=300)
                    assert max(found.values()) < 1e-4, (kind, compiled, normed)


def wrong_for_a_sum():
    me = labkit.ranks.here()
    stack, x = program.whole_and_input(24, 2, 8)
    mine = program.explicit(stack, program.tp_mesh())
    stack(x).square().sum().backward()
    losses(mine(x.detach().requires_grad_()), "summed", me.rank, me.world_size).backward()
    right = stack.mlps[1].up.weight.grad.chunk(me.world_size, 0)[me.rank]
    return ((mine.mlps[1].up.grad - right).abs().max() / right.abs().max()).item()


def test_the_lessons_g_is_for_a_replicated_loss_only(shm_ranks):
    assert min(shm_ranks.run(wrong_for_a_sum).values()) > 0.1


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


@pytest.mark.parametrize("world", [2, 4])
def test_an_open_partial_gathers_the_weight_where_the_model_says_so(world):
    sizes = {(64, 8): True, (512, 256): False, (1024, 64): False, (2048, 8): False, (256, 4096): True}
    with labkit.Ranks(world, device="cpu", backend="fake", quiet=True) as silent:
        for size, gathered in sizes.items():
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


def test_the_cheaper_way_is_decided_by_twice_the_tokens_and_three_times_the_hidden_features():
    for size in (2, 4, 8):
        assert cheaper(96, 32, 64, size)[0] == "tokens"  # 192 and 192
        assert cheaper(104, 32, 64, size)[0] == "weights"
        assert cheaper(104, 512, 64, size)[0] == "weights"  # the features do not matter


def called(placement, dim, depth, tokens):
    """What a forward and a backward call; without a placement local tensors go from MLP to MLP."""
    stack, x = program.whole_and_input(dim, depth, tokens)
    plan = program.between(placement) if placement else program.LOCAL
    mine, counts = program.planned(stack, program.tp_mesh(), plan), []
    with CommDebugMode() as forward:
        y = mine(x)
        y = y.full_tensor() if isinstance(y, DTensor) else y
    with CommDebugMode() as backward:
        y.square().mean().backward()
    for comm in (forward, backward):
        counts.append({str(op).rpartition(".")[2]: n for op, n in comm.get_comm_counts().items()})
    return counts, any(p.grad.placements[0].is_partial() for p in mine.parameters())


@pytest.mark.parametrize("world", [2, 4])
def test_local_tensors_between_the_mlps_are_all_reduced_whatever_the_sizes(world):
    with labkit.Ranks(world, device="cpu", backend="fake", quiet=True) as silent:
        for dim, depth, tokens in ((16, 2, 1024), (64, 3, 8), (512, 2, 256), (256, 1, 4096)):
            counts, partial = silent.run(called, None, dim, depth, tokens, ranks=0)[0]
            assert (counts, partial) == ([{"all_reduce": depth}, {"all_reduce": depth}], False)


def test_redistribute_to_replicate_fixes_the_forward_and_not_the_backward():
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as silent:
        small, large = (
            silent.run(called, Replicate(), *size, ranks=0)[0] for size in ((64, 3, 8), (512, 3, 256))
        )
    assert small[0][0] == large[0][0] == {"all_reduce": 3}
    assert "all_gather_into_tensor" in small[0][1] and set(large[0][1]) == {"all_reduce"}
    assert small[1] and not large[1]


def test_redistribute_to_shards_fixes_neither():
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as silent:
        few, many = (
            silent.run(called, Shard(0), *size, ranks=0)[0][0] for size in ((64, 2, 8), (256, 2, 4096))
        )
    assert few[0] != many[0] and few[1] != many[1]


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


@pytest.mark.parametrize("world", [2, 4])
def test_layers_that_share_an_input_sum_its_gradient_once_each_or_with_one_f_once(world):
    with labkit.Ranks(world, device="cpu", backend="gloo", quiet=True) as ranks:
        for size in ((16, 8), (64, 256)):
            for one_f, backward in ((False, 4), (True, 2)):
                for counts, error in ranks.run(of_gated, *size, one_f).values():
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
@pytest.mark.parametrize("world", [2, 3])
def test_the_whole_size_of_a_dtensor_is_not_guarded_while_it_is_a_constant(world):
    """Other sizes, another program and more ranks than the lesson's; right where rows are padded, or a symbol."""
    even, right, wrong = 4 * world, [True, True], [False, False]
    with labkit.Ranks(world, device="cpu", backend="gloo", quiet=True) as ranks:

        def said(*batches, dynamic=None, gathers=False):
            return ranks.run(of_batches, batches, dynamic, gathers, timeout=300).same()

        assert said(even, even - 1) == said(even, even - 1, dynamic=False) == [right, wrong]
        assert said(even - world, even, even - 1, dynamic=False) == [right, right, wrong]
        assert said(even - world, even, even - world) == [right] * 3  # padded: all that the lesson proposes
        assert said(even, even - world, even, dynamic=False) == [right] * 3
        for gathers in (False, True):
            assert said(even, even - 1, even + 1, even - world, dynamic=True, gathers=gathers) == [right] * 4

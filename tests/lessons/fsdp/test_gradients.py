"""FSDP's gradients are those of one process: by loss, on three ranks, eager and compiled, with another model."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from course.fsdp.link import Link, over
from course.fsdp.measure import apart, ranges, times_right
from labkit import lessons

SIZES, ROWS = (36, 96, 3, 21), 42  # not the lesson's
PLACES = ("eager", "compiled, then sharded", "sharded, then compiled")


def _times(loss: str, factor: float | None, where: str) -> float:
    program = lessons.program("fsdp")
    torch.compiler.reset()
    model = program.seeded(*SIZES)

    def compiles():
        for block in model.blocks if where != "eager" else ():
            block.compile(backend="aot_eager", fullgraph=True)

    if where == PLACES[1]:
        compiles()
    program.units(model)
    if where == PLACES[2]:
        compiles()
    program.divide_by(model, factor)
    for _ in range(2):  # the second step, after a first one
        model.zero_grad()
        getattr(program, loss)(model, *program.batch(ROWS)).backward()
    return times_right(model, program.one_process(*program.batch(ROWS), *SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES)
def test_the_gradient_of_each_loss_is_that_of_one_process_with_its_divide_factor_alone(three, where):
    for loss, factor, right in (
        ("mean_over_ranks", None, 1),
        ("replicated", None, 1),
        ("sum_over_ranks", 1.0, 1),
        ("mean_over_ranks", 1.0, 3),
        ("sum_over_ranks", None, 1 / 3),
    ):
        for times in three.run(_times, loss, factor, where).values():
            assert math.isclose(times, right, rel_tol=1e-4), (loss, factor, times)


def _masked(loss: str) -> float:
    """Ranks with unequal numbers of rows that count: -100 is no class."""
    program = lessons.program("fsdp")
    x, y = program.batch(ROWS)
    y[5:15] = -100
    right = program.seeded(*SIZES)
    F.cross_entropy(right(x), y).backward()
    model = program.units(program.seeded(*SIZES))
    mine, labels = program.of_this_rank(x), program.of_this_rank(y)
    if loss == "sum":
        program.divide_by(model, 1.0)
        (F.cross_entropy(model(mine), labels, reduction="sum") / (y >= 0).sum()).backward()
    else:
        F.cross_entropy(model(mine), labels).backward()
    return apart(model, [p.grad for p in right.parameters()])


@pytest.mark.slow
def test_where_ranks_have_unequally_many_rows_a_sum_is_right_and_a_mean_of_means_is_not(three):
    assert all(error < 1e-5 for error in three.run(_masked, "sum").values())
    assert all(error > 1e-3 for error in three.run(_masked, "mean").values())


def _gathered(again: bool) -> float:
    program = lessons.program("fsdp")
    torch.compiler.reset()
    model = program.gathered(program.seeded(*SIZES))
    call = program.recomputing(model) if again else model
    call = torch.compile(call, backend="aot_eager", fullgraph=True)
    program.sum_over_ranks(call, *program.batch(ROWS)).backward()
    right = program.one_process(*program.batch(ROWS), *SIZES)
    return apart(model, [program.of_this_rank(g) for g in right])


@pytest.mark.slow
def test_gathered_weights_have_the_gradient_of_a_sum_over_ranks(three):
    for again in (False, True):
        assert all(error < 1e-5 for error in three.run(_gathered, again).values())


def _prefetched(way: str, link: bool) -> tuple[list[str], float]:
    """On a rank: what FSDP2 marks in the second step, and the error of its gradients."""
    program = lessons.program("fsdp")
    model = getattr(program, way)(program.seeded(*SIZES))
    model = over(model, Link(0.001, wait_at_launch=True)) if link else model
    step = partial(program.one_step, model, *program.batch(ROWS))
    step()
    model.zero_grad()
    marks = [mark for mark, *_ in ranges(step)]
    return marks, apart(model, program.one_process(*program.batch(ROWS), *SIZES))


@pytest.mark.slow
def test_forward_prefetch_launches_a_gather_before_the_block_before_it_is_done(three):
    for way, link, first in (
        ("units", False, False),
        ("prefetched", False, True),
        ("prefetched", True, True),
    ):
        for marks, error in three.run(_prefetched, way, link).values():
            gather, done = (
                marks.index("FSDP::all_gather (blocks.2)"),
                marks.index("FSDP::post_forward (blocks.1)"),
            )
            assert (gather < done) == first and error < 1e-5


def test_a_gradient_that_is_missing_or_no_number_is_not_near():
    layer, right = torch.nn.Linear(2, 2, bias=False), [torch.ones(2, 2)]
    assert apart(layer, right) == float("inf")
    layer.weight.grad = torch.tensor([[1.0, 1.0], [1.0, float("nan")]])
    assert math.isnan(apart(layer, right))


def _checkpointed() -> tuple[int, float]:
    program = lessons.program("fsdp")
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = program.seeded(*SIZES)
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        block.compile(backend=counter)
    program.units(model)
    program.step_of(model, *program.batch(ROWS))
    return counter.frame_count, apart(model, program.one_process(*program.batch(ROWS), *SIZES))


@pytest.mark.slow
def test_a_forward_that_is_a_call_of_checkpoint_is_not_compiled(three):
    for graphs, error in three.run(_checkpointed).values():
        assert graphs == 0 and error < 1e-5


def test_a_compiled_block_changes_the_keys_only_where_it_is_wrapped():
    program = lessons.program("fsdp")
    keys = list(program.seeded(*SIZES).state_dict())
    wrapped, in_place = program.seeded(*SIZES), program.checkpointed(program.seeded(*SIZES))
    wrapped.blocks = torch.nn.ModuleList(torch.compile(block) for block in wrapped.blocks)
    for block in in_place.blocks:
        block.compile()
    assert "blocks.0._orig_mod.up.weight" in wrapped.state_dict()
    assert list(in_place.state_dict()) == keys

"""FSDP's gradients are those of one process: by loss, on two and four ranks, eager and compiled, with another model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from course.fsdp.link import Link, over
from course.fsdp.measure import apart, collectives, ranges, times_right
from course.shared.memory import peak
from labkit import Ranks, lessons

SIZES = (32, 96, 3, 20)  # not the lesson's
PLACES = ("eager", "compiled, then sharded", "sharded, then compiled")


@pytest.fixture(scope="module", params=[2, 4])
def some(request):
    with Ranks(request.param, device="cpu", backend="gloo", quiet=True, live=False) as group:
        yield group


def _times(loss: str, factor: float | None, where: str, **options: Any) -> float:
    import torch

    program = lessons.program("fsdp")
    torch.compiler.reset()
    model = program.seeded(*SIZES)

    def compiles():
        for block in model.blocks if where != "eager" else ():
            block.compile(backend="aot_eager", fullgraph=True)

    if where == PLACES[1]:
        compiles()
    program.units(model, **options)
    if where == PLACES[2]:
        compiles()
    program.divide_by(model, factor)
    for _ in range(2):  # the second step, after a first one
        model.zero_grad()
        getattr(program, loss)(model, *program.batch(40)).backward()
    return times_right(model, program.one_process(*program.batch(40), *SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES)
def test_the_gradient_of_each_loss_is_that_of_one_process_with_its_divide_factor(some, where):
    for loss, factor in (("mean_over_ranks", None), ("replicated", None), ("sum_over_ranks", 1.0)):
        for times in some.run(_times, loss, factor, where).values():
            assert math.isclose(times, 1, abs_tol=1e-5), (loss, times)


@pytest.mark.slow
def test_with_the_other_divide_factor_it_is_wrong_by_the_number_of_ranks(some):
    for loss, factor, times in (
        ("mean_over_ranks", 1.0, len(some)),
        ("replicated", 1.0, len(some)),
        ("sum_over_ranks", None, 1 / len(some)),
    ):
        for found in some.run(_times, loss, factor, "eager").values():
            assert math.isclose(found, times, rel_tol=1e-4), (loss, found)


def _root_alone(loss: str) -> float:
    program = lessons.program("fsdp")
    model = program.divide_by(program.units(program.seeded(*SIZES)), 1.0, everywhere=False)
    getattr(program, loss)(model, *program.batch(40)).backward()
    return times_right(model, program.one_process(*program.batch(40), *SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mean_over_ranks", "sum_over_ranks", "replicated"])
def test_a_divide_factor_of_the_root_alone_is_right_for_no_loss(some, loss):
    assert all(math.isnan(times) for times in some.run(_root_alone, loss).values())


def _masked(loss: str) -> float:
    """Ranks with unequal numbers of rows that count: -100 is no class."""
    import torch.nn.functional as F

    program = lessons.program("fsdp")
    x, y = program.batch(40)
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
def test_where_ranks_have_unequally_many_rows_a_sum_is_right_and_a_mean_of_means_is_not(some):
    assert all(error < 1e-5 for error in some.run(_masked, "sum").values())
    assert all(error > 1e-3 for error in some.run(_masked, "mean").values())


def _gathered(again: bool) -> float:
    import torch

    program = lessons.program("fsdp")
    torch.compiler.reset()
    model = program.gathered(program.seeded(*SIZES))
    call = program.recomputing(model) if again else model
    call = torch.compile(call, backend="aot_eager", fullgraph=True)
    program.sum_over_ranks(call, *program.batch(40)).backward()
    right = program.one_process(*program.batch(40), *SIZES)
    return apart(model, [program.of_this_rank(g) for g in right])


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_gathered_weights_have_the_gradient_of_a_sum_over_ranks(some, again):
    assert all(error < 1e-5 for error in some.run(_gathered, again).values())


def _prefetched() -> Any:
    from functools import partial

    program = lessons.program("fsdp")
    found = {}
    for name, build in (("default", program.units), ("prefetch", program.prefetched)):
        model = build(program.seeded(*SIZES))
        step = partial(program.one_step, model, *program.batch(40))
        step()
        model.zero_grad()
        found[name] = (
            [mark for mark, *_ in ranges(step)],
            apart(model, program.one_process(*program.batch(40), *SIZES)),
        )
        found[name] += (collectives(step),)
    return found


@pytest.mark.slow
def test_forward_prefetch_launches_a_gather_before_the_block_before_it_is_done(some):
    for found in some.run(_prefetched).values():
        for way, first in (("default", False), ("prefetch", True)):
            marks, error, counts = found[way]
            gather, done = (
                marks.index("FSDP::all_gather (blocks.2)"),
                marks.index("FSDP::post_forward (blocks.1)"),
            )
            assert (gather < done) == first and error < 1e-5
            assert counts == {"gathers": 7, "reduce-scatters": 4, "all-reduces": 0}


def _linked(wait_at_launch: bool) -> float:
    program = lessons.program("fsdp")
    model = over(program.prefetched(program.seeded(*SIZES)), Link(0.001, wait_at_launch))
    for _ in range(2):
        model.zero_grad()
        program.one_step(model, *program.batch(40))
    return apart(model, program.one_process(*program.batch(40), *SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("wait_at_launch", [False, True])
def test_over_the_simulated_link_gradients_are_those_of_one_process(some, wait_at_launch):
    assert all(error < 1e-5 for error in some.run(_linked, wait_at_launch).values())


def _spoilt(how: str) -> float:
    program = lessons.program("fsdp")
    model = program.units(program.seeded(*SIZES))
    program.one_step(model, *program.batch(40))
    right = program.one_process(*program.batch(40), *SIZES)
    first = next(model.parameters())
    first.grad = None if how == "missing" else first.grad * float("nan")
    return apart(model, right)


@pytest.mark.slow
def test_a_gradient_that_is_missing_or_no_number_is_not_near(ranks):
    assert all(error == float("inf") for error in ranks.run(_spoilt, "missing").values())
    assert all(error != error for error in ranks.run(_spoilt, "nan").values())


def _way(name: str) -> tuple[dict[str, int], float]:
    from functools import partial

    import torch

    program = lessons.program("fsdp")
    step = program.step_of
    if name.startswith("two"):
        whole = name.endswith("whole")
        step = partial(program.two_microbatches, one_sync=whole, stays_whole=whole)
    build = {"hsdp": program.hsdp, "bfloat16": program.bfloat16}
    build["checkpointed"] = lambda model: program.units(program.checkpointed(model))
    dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
    model = build.get(name, program.units)(program.seeded(*SIZES))
    for _ in range(2):
        model.zero_grad()
        step(model, *program.batch(40))
    error = apart(model, program.one_process(*program.batch(40), *SIZES, dtype=dtype))
    model.zero_grad()
    return collectives(partial(step, model, *program.batch(40))), error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gathers", "scatters", "most"),
    [
        ("two microbatches", 14, 8, 1e-5),
        ("two, stays whole", 10, 4, 1e-5),
        ("checkpointed", 7, 4, 1e-5),
        ("bfloat16", 7, 4, 0.03),  # 2 ** -8 is the precision of one number
    ],
)
def test_each_way_to_train_has_the_gradient_of_one_process(some, name, gathers, scatters, most):
    for counts, error in some.run(_way, name).values():
        assert counts == {"gathers": gathers, "reduce-scatters": scatters, "all-reduces": 0} and error < most


@pytest.mark.slow
def test_hybrid_sharding_has_the_gradient_of_one_process():
    with Ranks(4, device="cpu", backend="gloo", quiet=True, live=False) as four:
        for counts, error in four.run(_way, "hsdp").values():
            assert counts == {"gathers": 7, "reduce-scatters": 4, "all-reduces": 4} and error < 1e-5


def _peaks() -> list[int]:
    """Of plain units, then of hybrid sharding, after an earlier model that only the garbage collector frees."""
    from functools import partial

    program, found = lessons.program("fsdp"), []
    for build in (program.units, program.hsdp):
        model = build(program.seeded(*SIZES))
        step = partial(program.step_of, model, *program.batch(40))
        step()
        model.zero_grad()
        found.append(peak(step))
    return found


@pytest.mark.slow
def test_hybrid_sharding_adds_more_memory_in_a_step_than_plain_units():
    with Ranks(4, device="cpu", backend="shm", quiet=True, live=False) as four:
        for units, hsdp in four.run(_peaks).values():
            assert hsdp > units


def _checkpointed(how: str) -> tuple[int, float, list[str]]:
    from functools import partial

    import torch
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch.utils.checkpoint import checkpoint

    program = lessons.program("fsdp")
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = program.seeded(*SIZES)
    if how == "wrapper":
        model = program.checkpointed(model)
    for block in model.blocks:
        if how == "forward":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        block.compile(backend=counter)
    program.units(model)
    program.step_of(model, *program.batch(40))
    error = apart(model, program.one_process(*program.batch(40), *SIZES))
    return counter.frame_count, error, list(model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(("how", "graphs"), [("wrapper", 1), ("forward", 0)])
def test_checkpointed_blocks_are_compiled_where_a_module_calls_checkpoint(some, how, graphs):
    for found, error, keys in some.run(_checkpointed, how).values():
        assert found == graphs and error < 1e-5
        assert "blocks.0.up.weight" in keys


def test_a_compiled_block_changes_the_keys_only_where_it_is_wrapped():
    import torch

    program = lessons.program("fsdp")
    wrapped, in_place = program.seeded(*SIZES), program.seeded(*SIZES)
    wrapped.blocks = torch.nn.ModuleList(torch.compile(block) for block in wrapped.blocks)
    for block in in_place.blocks:
        block.compile()
    assert "blocks.0._orig_mod.up.weight" in wrapped.state_dict()
    assert list(in_place.state_dict()) == list(program.seeded(*SIZES).state_dict())

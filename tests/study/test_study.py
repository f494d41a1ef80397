"""Predictions beside measurements, and an exercise that answers each mistake with its own hint."""

from __future__ import annotations

import pytest

from labkit import check, predict, tensor_parallel
from labkit.study import reveal


def test_a_prediction_is_shown_beside_the_measurement():
    predict("test.regions", 100, "regions")
    assert str(reveal("test.regions", 440)) == (
        "measured: 440 regions; you predicted 100, which is 4.4 times too low"
    )
    predict("test.regions", 440, "regions")
    assert "exactly that" in reveal("test.regions", 440)
    predict("test.regions", 450, "regions")
    assert "within 10 %" in reveal("test.regions", 440)


def test_no_prediction_is_fine_and_takes_an_old_one_back():
    predict("test.breaks", 3)
    assert "fine" in predict("test.breaks")
    assert "you made no prediction" in reveal("test.breaks", 5)


def test_a_prediction_is_a_number():
    with pytest.raises(ValueError, match="a prediction is a number, got 'many'"):
        predict("test.x", "many")  # type: ignore[arg-type]


def returns_nothing(x):
    import torch.distributed as dist

    dist.all_reduce(x)


def forgets_the_result(x):
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    if torch.compiler.is_compiling():
        funcol.all_reduce(x, "sum", dist.group.WORLD)
        return x
    dist.all_reduce(x)
    return x


def unwritten(x):
    raise NotImplementedError


def wrong_sum(x):
    return x * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (unwritten, "write the body"),
        (returns_nothing, "return the tensor"),
        (wrong_sum, "not the sum over all ranks"),
        (forgets_the_result, "return that one"),
        (tensor_parallel.functional, "take dist.all_reduce there"),
        (tensor_parallel.inplace, "rewritten with a copy back"),
        (tensor_parallel.disabled, "hides it from the compiler"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_mistake_at_the_gate_gets_its_own_hint(shm_ranks, attempt, says):
    answer = check("cliff.gate", attempt, shm_ranks)
    assert not answer
    assert says in repr(answer)


@pytest.mark.slow
def test_the_gate_of_the_model_passes(shm_ranks):
    answer = check("cliff.gate", tensor_parallel.gated, shm_ranks)
    assert answer, repr(answer)


def test_unknown_exercises_and_attempts_are_refused(shm_ranks):
    with pytest.raises(ValueError, match="unknown exercise 'x': there is cliff.gate"):
        check("x", unwritten, shm_ranks)
    with pytest.raises(ValueError, match="must be a function, got int"):
        check("cliff.gate", 3, shm_ranks)  # type: ignore[arg-type]

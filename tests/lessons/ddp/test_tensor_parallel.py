"""Gradients of tensor parallelism beside one process: right by form, by loss convention and by parameter."""

from __future__ import annotations

import pytest

import labkit
from course.ddp.tensor_parallel import gradients

SPLIT = ["first up", "first down", "last up", "last down"]
BEFORE_THE_SPLIT = ["input", "first bias", "first norm", "last norm"]
LAST_BIAS = "last bias"  # nothing is split after it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "sizes"), [(2, {}), (4, {"blocks": 3, "dim": 6, "tokens": 10})], ids=["two ranks", "four ranks"]
)
def test_what_is_right_by_form_loss_and_parameter(n, sizes):
    with labkit.Ranks(n, device="cpu", backend="gloo", timeout=120, quiet=True) as ranks:
        table = gradients(ranks, **sizes)

    # the rewrite of the call in place has the backward of the functional form
    backward_is_a_sum = [("functional", "eager"), ("functional", "compiled"), ("in place", "compiled")]
    for form, mode in backward_is_a_sum:
        once, twice = table.loc[("summed", form, mode)], table.loc[("replicated", form, mode)]
        assert set(once[SPLIT]) == {"right"} and set(twice[SPLIT]) == {f"{n} x right"}
        assert set(once[[*BEFORE_THE_SPLIT, LAST_BIAS]]) == {"part of right"}
        assert set(twice[BEFORE_THE_SPLIT]) == {f"part of {n} x right"} and twice[LAST_BIAS] == "right"

    # in eager, autograd does not see the call in place: what one block shows is not so in the block before it
    unseen = table.loc[("replicated", "in place", "eager")]
    assert (
        set(unseen[["last up", "last down", LAST_BIAS]]) == {"right"}
        and unseen["last norm"] == "part of right"
    )
    assert set(unseen[["first up", "first down", "first norm", "first bias", "input"]]) == {"wrong"}
    assert (table.loc[("summed", "in place", "eager")] == "wrong").sum() == len(table.columns) - 1

    for mode in ("eager", "compiled"):
        assert set(table.loc[("replicated", "f and g", mode)]) == {"right"}
        assert set(table.loc[("summed", "f and g, f at the loss", mode)]) == {"right"}
        assert set(table.loc[("summed", "f and g", mode)][SPLIT]) == {"wrong"}, (
            "the loss differs between ranks"
        )


@pytest.mark.slow
def test_the_last_of_many_blocks_is_named_as_the_last(ranks):
    columns = gradients(ranks, blocks=11, dim=2).columns
    assert set(columns) == {*SPLIT, *BEFORE_THE_SPLIT, LAST_BIAS} and len(columns) == 9


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"blocks": 1}, "blocks must be at least 2, got 1"),
        ({"tokens": 1}, "tokens must be at least 2, one for each rank, got 1"),
        ({"dim": 0}, "dim must be a whole number above 0, got 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_any_rank_hears_of_them(ranks, sizes, said):
    calls = ranks.calls
    with pytest.raises(ValueError, match=said):
        gradients(ranks, **sizes)
    assert ranks.calls == calls

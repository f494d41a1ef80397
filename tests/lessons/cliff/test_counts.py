"""What lesson 04's own measuring cells count and time, at two blocks, and its rules outside of its model."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import lesson_cells
import numpy as np
import pandas as pd
import pytest
import torch

import labkit
from course.cliff import figures
from course.cliff import program as tp
from course.shared.variants import own, with_own_code
from labkit import timing, views

BLOCKS, ROUNDS = 2, 8
PROGRAM = ("cell-03-acbcd49c", "toys", "prog-linear", "prog-block", "prog-model")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def space() -> Iterator[dict[str, Any]]:
    with labkit.Ranks(2, device="cpu", backend="shm", timeout=300, quiet=True) as ranks:
        names = {"ranks": ranks, "pd": pd, "np": np, "labkit": labkit, "timing": timing, "views": views}
        names |= {"ROUNDS": ROUNDS, "LINKS": [], "Times": timing.Times, "figures": figures}
        names |= {"time": time, "with_own_code": with_own_code}
        made = lesson_cells.run("04_graph_break_cliff", *PROGRAM, **names)
        names = {**made, "config": made["Config"](blocks=BLOCKS)}
        yield lesson_cells.run("04_graph_break_cliff", "measure", "verdicts", **names)


def counts(table: pd.DataFrame) -> pd.Series:
    mine = table.drop(columns=["rank", "first_call_s"])
    assert len(mine) == 2 and len(mine.drop_duplicates()) == 1, "both ranks must count the same"
    return mine.iloc[0]


def test_disabled_collectives_fragment_every_block(space):
    found = counts(space["counts"].loc["B"])
    assert found["collectives"] == found["at_collective"] == 4 * BLOCKS
    assert found["regions"] == 11 * BLOCKS
    assert found["breaks"] == 8 * BLOCKS
    assert found["skips"] >= 1  # Model.forward, whose loop a break ends
    # the static counter does not grow with the blocks
    assert 0 < found["static_breaks"] < found["breaks"]


def test_eager_enters_no_region(space):
    for variant in "AD":
        found = counts(space["counts"].loc[variant])
        assert (found["regions"], found["breaks"], found["graphs"]) == (0, 0, 0)
        assert found["collectives"] == 4 * BLOCKS


def test_one_graph_and_no_break_without_disable(space):
    for variant in "CE":
        one = counts(space["counts"].loc[variant])
        assert (one["regions"], one["breaks"], one["graphs"], one["skips"]) == (1, 0, 1, 0)
        assert one["collectives"] == 4 * BLOCKS


def test_by_block_one_graph_runs_once_a_block(space):
    one = counts(space["counts"].loc["R"])
    assert (one["regions"], one["breaks"], one["graphs"]) == (BLOCKS, 0, 1)


def test_nested_breaks_leave_one_break_for_each_hidden_call(space):
    one = counts(space["counts"].loc["N"])
    assert (one["regions"], one["breaks"], one["collectives"]) == (5 * BLOCKS, 4 * BLOCKS, 4 * BLOCKS)


def test_each_variant_is_timed_in_each_round_on_each_rank(space):
    (times,) = space["times"].values()
    assert times.frame.groupby(["variant", "rank"]).size().to_dict() == {
        (variant, rank): ROUNDS for variant in "ABCDERN" for rank in (0, 1)
    }


def test_what_the_toys_count(space):
    table = {(name, nested): found for (name, nested), found in space["toys"].items()}
    default = {name: found for (name, nested), found in table.items() if nested == "default"}
    assert default == {
        "step": (1, 2),
        "deeper": (2, 4),
        "calls_step_8_times": (1, 16),
        "breaks_in_the_loop": (0, 0),
    }
    assert table["deeper", "nested_graph_breaks"] == (1, 2)


# --- the rule outside of the lesson's model: other frames, with gradients, against one process ---


class Leaf(torch.nn.Module):
    def __init__(self, after: bool) -> None:
        super().__init__()
        self.linear, self.after = torch.nn.Linear(8, 8), after

    def forward(self, x):
        y = hide(self.linear(x))
        return y * 2 if self.after else y


class Middle(torch.nn.Module):
    def __init__(self, after: bool) -> None:
        super().__init__()
        self.leaf = Leaf(after)

    def forward(self, x):
        return self.leaf(torch.tanh(x)) + 1


@torch.compiler.disable
def hide(x):
    return x.clone()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_break_for_each_frame_and_no_region_for_an_empty_rest(nested, after, training):
    def look(outer):
        fn, x = torch.compile(outer, backend="aot_eager"), torch.ones(2, 8, requires_grad=training)
        with torch._dynamo.config.patch(nested_graph_breaks=nested), torch.set_grad_enabled(training):
            with labkit.record() as rec:  # from the first call on: breaks are noted while they are compiled
                for _ in range(3):
                    fn(x)
                with rec.forward():
                    y = fn(x)
        return rec.counts.iloc[0], y, x

    torch._dynamo.reset()
    model = with_own_code(torch.nn.ModuleList([Middle(after), Middle(after)]))

    def outer(x):
        return model[1](model[0](x)) * 3

    found, y, x = look(own(outer))
    hidden, frames = 2, 3  # outer, Middle and Leaf stand on the way to each hidden call
    if nested:
        assert (found["breaks"], found["regions"]) == (hidden, hidden + 1)
    else:
        assert found["breaks"] == hidden * frames
        rest = 2 if after else 1  # a Leaf that returns at once has no rest
        assert found["regions"] == (hidden + 1) + hidden * 2 + hidden * rest
    torch.testing.assert_close(y, outer(x))
    if training:
        (mine,) = torch.autograd.grad(y.sum(), x)
        (theirs,) = torch.autograd.grad(outer(x).sum(), x)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("how", ["whole", "blocks", "nested"])
@pytest.mark.parametrize("reduce", ["inplace", "disabled", "functional"])
def test_every_way_to_compile_computes_what_one_process_does(ranks, reduce, how):
    def forward(reduce, how):
        import torch.distributed as dist

        torch._dynamo.reset()
        config = tp.Config(dim=48, heads=6, blocks=3, tokens=5)
        model = tp.shard(tp.full(config), dist.get_rank(), dist.get_world_size(), getattr(tp, reduce))
        if how == "blocks":
            for block in model.blocks:
                block.compile(backend="aot_eager")
        else:
            model = torch.compile(model, backend="aot_eager")
        with torch._dynamo.config.patch(nested_graph_breaks=how == "nested"), torch.no_grad():
            model(config.sample())
            return model(config.sample()).clone()

    config = tp.Config(dim=48, heads=6, blocks=3, tokens=5)
    right = tp.full(config)(config.sample())
    for y in ranks.run(forward, reduce, how).values():
        torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)


def test_each_further_break_takes_longer_in_another_model():
    """The slope is positive, and a chain of small steps with 16 breaks takes longer than one with 4."""

    @torch.compiler.disable
    def hidden(x):
        return x

    def chain(breaks):
        def forward(x):
            for i in range(16):  # the steps are unrolled: their frames are the breaks' own
                x = broken(x) if i < breaks else whole(x)
            return x

        return forward

    def whole_step(x):
        return torch.tanh(x * 0.5) + 1

    def broken_step(x):
        return hidden(torch.tanh(x * 0.5)) + 1

    torch._dynamo.reset()
    whole, broken = (torch.compile(own(step), backend="eager") for step in (whole_step, broken_step))
    x = torch.ones(4, 4)
    forwards = {str(n): functools.partial(chain(n), x) for n in (0, 4, 16)}
    with torch.no_grad():
        times = timing.interleave(forwards, 30, clock=time.thread_time)
    medians = [times.median[name] for name in ("0", "4", "16")]
    assert medians == sorted(medians)

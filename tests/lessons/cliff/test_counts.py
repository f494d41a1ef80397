"""What lesson 04's own measuring cells count and time, at two blocks, and its rules outside of its model."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

import lesson_cells
import numpy as np
import pandas as pd
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

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
    with (
        labkit.Ranks(2, device="cpu", backend="shm", timeout=300, quiet=True) as ranks,
        labkit.Ranks(2, device="cpu", backend="fake", timeout=300, quiet=True) as silent,
    ):
        names = {
            "ranks": ranks,
            "silent": silent,
            "pd": pd,
            "np": np,
            "labkit": labkit,
            "timing": timing,
            "views": views,
        }
        names |= {"ROUNDS": ROUNDS, "figures": figures}
        names |= {"time": time, "with_own_code": with_own_code}
        made = lesson_cells.run("04_graph_break_cliff", *PROGRAM, **names)
        names = {**made, "config": made["Config"](blocks=BLOCKS)}
        yield lesson_cells.run("04_graph_break_cliff", "measure", "verdicts", **names)


def test_disabled_collectives_fragment_every_block(space):
    found = space["counts"].loc["B"]
    assert found["collectives"] == found["at_collective"] == 4 * BLOCKS
    assert found["regions"] == 11 * BLOCKS
    assert found["breaks"] == 8 * BLOCKS
    assert found["skips"] >= 1  # Model.forward, whose loop a break ends
    # the static counter does not grow with the blocks
    assert 0 < found["static_breaks"] < found["breaks"]


def test_eager_enters_no_region(space):
    for variant in "AD":
        found = space["counts"].loc[variant]
        assert (found["regions"], found["breaks"], found["graphs"]) == (0, 0, 0)
        assert found["collectives"] == 4 * BLOCKS


def test_one_graph_and_no_break_without_disable(space):
    for variant in "CE":
        one = space["counts"].loc[variant]
        assert (one["regions"], one["breaks"], one["graphs"], one["skips"]) == (1, 0, 1, 0)
        assert one["collectives"] == 4 * BLOCKS


def test_by_block_one_graph_runs_once_a_block(space):
    one = space["counts"].loc["R"]
    assert (one["regions"], one["breaks"], one["graphs"]) == (BLOCKS, 0, 1)


def test_nested_breaks_leave_one_break_for_each_hidden_call(space):
    one = space["counts"].loc["F"]
    assert (one["regions"], one["breaks"], one["collectives"]) == (5 * BLOCKS, 4 * BLOCKS, 4 * BLOCKS)


def test_each_variant_is_timed_in_each_round_and_three_of_them_on_each_rank(space):
    alone, linked = (
        one.frame.groupby(["variant", "rank"]).size().to_dict() for one in space["times"].values()
    )
    assert alone == {(variant, 0): ROUNDS for variant in "ABCDERF"}
    assert linked == {(variant, rank): ROUNDS for variant in "ABC" for rank in (0, 1)}


def test_two_ranks_with_a_link_count_what_one_without_does(space):
    for one in space["ranks"].run(space["measure"], ["B"], rounds=2).values():
        mine, theirs = one["records"]["B"].counts.iloc[0], space["counts"].loc["B"]
        assert all(mine[name] == theirs[name] for name in ("regions", "breaks", "collectives"))


def test_what_the_toys_count(space):
    table = {(name, nested): found for (name, nested), found in space["toys"].items()}
    default = {name: found for (name, nested), found in table.items() if nested == "default"}
    assert default == {
        "step": (1, 2),
        "deeper": (2, 4),
        "calls_step_8_times": (1, 16),
        "breaks_in_the_loop": (0, 0),
        "breaks_in_a_try": (0, 0),
    }
    assert table["deeper", "nested_graph_breaks"] == (1, 2)


# --- the rule outside of the lesson's model: other frames, with gradients, against one process ---


def loop_after_the_break(x):
    x = hide(x * 0.5) + 1
    for _ in range(8):
        x = x * 0.5
    return x


def returns_from_the_loop(x):
    for i in range(8):
        x = x * 0.5
        if i == 3:
            return hide(x) + 1
    return x


def branch_in_the_loop(x):
    for _ in range(8):
        x = x * 0.5
        if x.max() > 6:
            x = x / 2
    return x


class Timer:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def in_a_with_of_its_own(x):
    with Timer():
        x = hide(x * 0.5) + 1
    return x


def in_torchs_no_grad(x):
    with torch.no_grad():
        x = hide(x * 0.5) + 1
    return x


def in_a_try(x):
    try:
        x = hide(x * 0.5) + 1
    except ValueError:
        x = x * 2
    return x


def in_an_except(x):
    try:
        raise ValueError
    except ValueError:
        x = hide(x * 0.5) + 1
    return x


def in_a_while(x):
    n = 0
    while n < 3:
        x, n = hide(x * 0.5) + 1, n + 1
    return x


def in_torchs_autocast(x):
    with torch.autocast("cpu"):
        x = hide(x * 0.5) + 1
    return x


def in_a_record_function(x):
    with torch.profiler.record_function("a part"):
        x = hide(x * 0.5) + 1
    return x


def in_a_nullcontext(x):
    with contextlib.nullcontext():
        x = hide(x * 0.5) + 1
    return x


def in_a_generator_expression(x):
    return sum(hide(x * 0.5) + i for i in range(3))


def no_tensor_operation(x):
    hide(x)
    return x


@pytest.mark.parametrize(
    ("fn", "breaks", "regions"),
    [
        (loop_after_the_break, 1, 2),
        (returns_from_the_loop, 1, 2),
        (branch_in_the_loop, 0, 0),
        (in_a_with_of_its_own, 0, 0),
        (in_torchs_no_grad, 1, 2),
        (in_a_try, 0, 0),
        (in_an_except, 0, 0),
        (in_a_while, 0, 0),
        (in_torchs_autocast, 1, 2),
        (in_a_record_function, 1, 2),
        (in_a_nullcontext, 1, 2),
        (in_a_generator_expression, 1, 0),
        (no_tensor_operation, 1, 1),
    ],
)
def test_where_a_break_makes_dynamo_skip_a_frame(space, fn, breaks, regions):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled, x = torch.compile(own(fn), backend="eager"), torch.ones(4)
    for _ in range(3):
        compiled(x)
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == breaks
    assert space["entered"](lambda: compiled(x)) == regions


def test_a_break_cuts_the_backward_too():
    def counted(graphs):
        def compiler(graph, inputs):
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        return compiler

    forwards: list[Any] = []
    backwards: list[Any] = []
    backend = aot_autograd(fw_compiler=counted(forwards), bw_compiler=counted(backwards))
    torch._dynamo.reset()
    x = torch.ones(4, requires_grad=True)

    def two_pieces(x):
        return hide(torch.sin(x)).cos()

    torch.compile(two_pieces, backend=backend)(x).sum().backward()
    assert (len(forwards), len(backwards)) == (2, 2)


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

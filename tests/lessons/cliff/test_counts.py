"""Lesson 04's rules outside of its model: which frames a break skips, how many regions it makes, and in backward."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from oddrank.record import record

from course.cliff import program as tp
from course.shared.variants import own, with_own_code

pytestmark = pytest.mark.slow


@torch.compiler.disable
def hide(x):
    return x.clone()


def loop_after_the_break(x):
    x = hide(x * 0.5) + 1
    for _ in range(8):
        x = x * 0.5
    return x


class Timer:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def in_a_with(context):
    def forward(x):
        with context():
            x = hide(x * 0.5) + 1
        return x

    return forward


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


def in_a_generator_expression(x):
    return sum(hide(x * 0.5) + i for i in range(3))


def no_tensor_operation(x):
    hide(x)
    return x


HARMLESS = {
    "no_grad": torch.no_grad,
    "autocast": functools.partial(torch.autocast, "cpu"),
    "record_function": functools.partial(torch.profiler.record_function, "a part"),
    "nullcontext": contextlib.nullcontext,
}


@pytest.mark.parametrize(
    ("fn", "breaks", "regions"),
    [
        (loop_after_the_break, 1, 2),
        (in_an_except, 0, 0),
        (in_a_while, 0, 0),
        pytest.param(in_a_with(Timer), 0, 0, id="in_a_with_of_its_own"),
        *(pytest.param(in_a_with(context), 1, 2, id=f"in_{name}") for name, context in HARMLESS.items()),
        (in_a_generator_expression, 1, 0),
        (no_tensor_operation, 1, 1),
    ],
)
def test_where_a_break_makes_dynamo_skip_a_frame(fn, breaks, regions):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled, x = torch.compile(own(fn), backend="eager"), torch.ones(4)
    for _ in range(3):
        compiled(x)
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == breaks
    assert tp.entered(lambda: compiled(x)) == regions


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


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_break_for_each_frame_and_no_region_for_an_empty_rest(nested, after):
    def look(outer):
        fn, x = torch.compile(outer, backend="aot_eager"), torch.ones(2, 8, requires_grad=True)
        with torch._dynamo.config.patch(nested_graph_breaks=nested):
            with record() as rec:  # from the first call on: breaks are noted while they are compiled
                for _ in range(3):
                    fn(x)
                with rec.forward():
                    y = fn(x)
        return rec.counts.dicts()[0], y, x

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
    (mine,) = torch.autograd.grad(y.sum(), x)
    (theirs,) = torch.autograd.grad(outer(x).sum(), x)
    torch.testing.assert_close(mine, theirs)


# --- one module that breaks, among others of its class ---


def plain(x):
    return x.clone()


class Held(torch.nn.Module):
    """The function that may break is held by the module: the line is the same in each."""

    def __init__(self, odd: bool) -> None:
        super().__init__()
        self.linear, self.call = torch.nn.Linear(8, 8), hide if odd else plain

    def forward(self, x):
        return self.call(self.linear(x)).relu() + x


class Guarded(Held):
    """A guard on `odd` tells them apart."""

    def __init__(self, odd: bool) -> None:
        super().__init__(odd)
        self.odd = odd

    def forward(self, x):
        y = self.linear(x)
        if self.odd:
            y = hide(y)
        return y.relu() + x


class OfItsOwn(Held):
    """Another class with the same code."""


class Above(torch.nn.Module):
    """Calls a module of which a flag, or the function that it holds, is odd."""

    def __init__(self, odd: bool, kind: type = Guarded) -> None:
        super().__init__()
        self.inner = kind(odd)

    def forward(self, x):
        return self.inner(x.tanh()) + 1


class OddAbove(Above):
    """Another class with the same code."""


class InALoop(torch.nn.Module):
    def __init__(self, kinds) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(kind(odd) for kind, odd in kinds)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def regions(kinds, train):
    """Regions of the first forward and of the third."""
    torch._dynamo.reset()
    net = torch.compile(InALoop(kinds), backend="aot_eager")
    x = torch.ones(2, 8, requires_grad=train)
    with torch.set_grad_enabled(train):
        first, _, third = (tp.entered(lambda: net(x)) for _ in range(3))
    return first, third


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("n", [3, 6])
def test_one_that_breaks_splits_all_of_its_class_unless_a_guard_tells_it_apart(n, train):
    """Section 5's rule: what the others hold is then a region of its own, between two pieces."""
    whole, last = [(Held, False)] * (n - 1), [(Held, True)]
    assert regions(whole + last, train) == (n + 1, 3 * n - 1)
    assert regions(last + whole, train) == (3 * n - 1, 3 * n - 1)
    assert regions([(Held, True)] * n, train)[1] == 2 * n  # fewer
    assert regions([(Guarded, False)] * (n - 1) + [(Guarded, True)], train)[1] == n + 1
    assert regions(whole + [(OfItsOwn, True)], train)[1] == n + 1
    callers = [(Above, False)] * (n - 1)
    assert regions(callers + [(Above, True)], train) == (
        n + 3,
        3 * n + 1,
    )  # no guard on the flag in the caller
    assert regions(callers + [(OddAbove, True)], train)[1] == n + 3
    assert regions([(Held, False)] * n, train) == (1, 1)


def test_a_split_module_still_runs_the_function_that_it_holds():
    torch._dynamo.reset()
    modules = InALoop([(Held, i == 4) for i in range(5)])
    net, x = torch.compile(modules, backend="aot_eager"), torch.rand(2, 8)
    for _ in range(3):
        torch.testing.assert_close(net(x), modules(x))

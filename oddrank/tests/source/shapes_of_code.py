"""Functions of many shapes. A line ends in what stands beside it.

`A` is an operator in graph A, `a` the same graph without one, `^A` inlined, `.` nothing, `e` in eager, `!` the end of a
graph, `/2` the second compile alone. In the picture of the function around one it is nothing. A loop counts as run.
The marks are a trace's, in which a function without an operator of its own leaves nothing.
"""

import functools
import os
import types

import torch
from torch.utils.checkpoint import checkpoint

SEPARATORS = "a form feed \f and a line separator \u2028 end no line of Python"
RANK = int(os.environ.get("RANK", 0))


def compiled(fn=None, **more):
    """Compile with a backend that takes no time."""
    if fn is None:
        return functools.partial(compiled, **more)
    return torch.compile(fn, backend=more.pop("backend", "eager"), **more)


@torch.compiler.disable
def hidden(*_):
    """What Dynamo leaves the graph for."""


@compiled
def branches(x, flag):
    y = x.sin()  #: A
    if flag is None:  #: a
        y = y.cos()  #: .
        z = 3  #: .
    elif flag:  #: a
        y = y.tan()  #: A
        z = 4  #: a
    else:  #: a
        z = 5  #: .
    try:  #: a
        y = y + z  #: A
    except ValueError:  #: a
        y = y - 1  #: .
    return y  #: a


@compiled
def returns_early(x, flag):
    y = x.sin()  #: A
    if flag:  #: a
        return y  #: .
    z = 3  #: .
    return y * z  #: .


@compiled
def returns_inside(x, flag):
    y = x.sin()  #: A
    if flag:  #: a
        y = y.cos()  #: A
        if flag is True:  #: .
            return y  #: .
        y = y + 1  #: .
    return y * 2  #: .


@compiled
def goes_on(x, flag):
    y = x.sin()  #: A
    if flag:  #: a
        return y * 2  #: .
    z = 3  #: a
    return y * z  #: A


@compiled
def guarded(x):
    if x.dim() > 4:  #: a
        raise ValueError("too many")  #: .
    return x.exp()  #: A


@compiled
def outer(x):
    """Its docstring."""  #: .

    def inner(y):
        z = y.cos()  #: ^A
        return z * 2  #: ^A

    seq = [  #: a
        inner(x),  #: a
        x.sin(),  #: A
    ]  #: a
    return torch.stack(seq)  #: A


def of_a_lambda():
    """Nothing of it is compiled but the lambda."""  #: .
    first = 1  #: .
    run = compiled(lambda x: x.sin() + 1)  #: A
    last = 2  #: .
    return run(torch.ones(3)) + first + last  #: .


# fmt: off
@compiled
def one_line(x): return x.sin() * 2  #: A
# fmt: on


@compiled(
    dynamic=False,
)
@torch.no_grad()
def decorators(x):
    return x.sin()  #: ^A


@compiled
def loops(x):
    total = 0  #: a
    for i in range(3):  #: a
        total += i  #: a
        x = x * 2  #: A
    with torch.no_grad():
        x = x + total  #: A
    while total > 3:  #: a
        total -= 1  #: a
    return x  #: a


class Outer:
    """A class inside of a class."""

    class Inner:
        """With a method that breaks inside of a branch."""

        @compiled
        def method(self, x, flag):
            y = x.sin()  #: A
            if flag:  #: a
                y = y.cos()  #: A
                hidden(y)  #: !
                y = y.tan()  #: B
            else:  #: b
                y = y.exp()  #: .
            return y + 1  #: B


async def waits(x):
    """A coroutine is not compiled, and the function that it calls is."""
    return goes_on(x, False)  #: .


@compiled(dynamic=False)
def again(x, flag):
    y = x.sin()  #: A
    if flag:  #: a
        y = y + 1  #: A/1
    else:  #: a
        y = y - 1  #: A/2, 3, 4
    hidden(y)  #: !
    return y * 2  #: B


@compiled
def after_a_reset(x):
    return x.sin() + 1  #: A


def copied(x):
    y = x.sin()  #: ABC
    return y + 1  #: ABC


@compiled(dynamic=True)
def sized(x, y):
    if x.shape[0] > 8:  #: a
        return x * 2 + y  #: A
    return x + y  #: .


def saved(x):
    y = x.tanh()  #: ^A
    return y.exp()  #: ^A


@compiled(backend="aot_eager")
def checkpointed(x):
    y = checkpoint(saved, x, use_reentrant=False)  #: A
    return y.sum()  #: A


def twice_in_one_graph(x):
    return x.cos() * 2


@compiled
def calls(x):
    x = twice_in_one_graph(x)  #: a
    if RANK == 1:  #: a
        hidden(x)  # ranks differ
    return twice_in_one_graph(x)


@compiled
def given_up(x):
    def never(y):  #: e
        return y.exp()  #: .

    for _ in range(2):  #: e
        x = x.sin()  #: e
        hidden(x)  #: e!
    return x  #: e


def main():
    """Run everything, each more than once."""
    ones = torch.ones
    for _ in range(2):
        branches(ones(3), True)
        returns_early(ones(3), True)
        returns_inside(ones(3), True)
        goes_on(ones(3), False)
        guarded(ones(3))
        outer(ones(3))
        of_a_lambda()
        one_line(ones(3))
        decorators(ones(3))
        loops(ones(3))
        Outer.Inner().method(ones(3), True)
        checkpointed(ones(3, requires_grad=True)).backward()
        calls(ones(3))
        given_up(ones(3))
    try:
        waits(ones(3)).send(None)
    except StopIteration:
        pass
    again(ones(3), True)
    again(ones(3), False)
    again(ones(4), False)
    again(ones(4, dtype=torch.float64), False)
    sized(ones(12, 2), ones(12, 2))
    sized(ones(13, 2), ones(13, 2))
    for n in range(3):
        copy = types.FunctionType(
            copied.__code__.replace(co_consts=(*copied.__code__.co_consts, n)), globals()
        )
        compiled(copy)(ones(3))
    after_a_reset(ones(3))
    torch._dynamo.reset()
    after_a_reset(ones(3))


if __name__ == "__main__":
    main()

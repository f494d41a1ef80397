"""Plausible wrong answers to the exercises of lesson 05, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.utils._pytree import tree_map_only


def plain(x):
    y = x.clone()
    dist.broadcast(y, 0)
    y *= dist.get_rank() + 1
    dist.all_reduce(y)
    return y * 2


def functional_everywhere(x):
    y = funcol.broadcast(x, 0, dist.group.WORLD) * (dist.get_rank() + 1)
    return funcol.all_reduce(y, "sum", dist.group.WORLD) * 2


def gates_both(x):
    return functional_everywhere(x) if torch.compiler.is_compiling() else plain(x)


def after_the_broadcast(x):
    y = x * (dist.get_rank() + 1)
    dist.all_reduce(y)
    return y * 2


def drops_the_result(x):
    x = x.clone()
    if torch.compiler.is_compiling():
        funcol.broadcast(x, 0, dist.group.WORLD)
    else:
        dist.broadcast(x, 0)
    return after_the_broadcast(x)


def forgets_the_factor(x):
    return plain(x) / 2


def without_the_sum(x):
    y = x.clone()
    dist.broadcast(y, 0)
    return y * 2 * dist.get_world_size()


def loses_the_gradient(x):
    if torch.compiler.is_compiling():
        x = funcol.broadcast(x, 0, dist.group.WORLD)
    else:
        x = x.clone()
        dist.broadcast(x, 0)
    return after_the_broadcast(x)


def writes_into_x(x):
    if torch.compiler.is_compiling():
        x = funcol.broadcast(x, 0, dist.group.WORLD)
    else:
        dist.broadcast(x, 0)
    return after_the_broadcast(x)


def copies_back(x):
    if torch.compiler.is_compiling():
        x.copy_(funcol.broadcast(x, 0, dist.group.WORLD))
    else:
        y = x.clone()
        dist.broadcast(y, 0)
        x = y
    return after_the_broadcast(x)


def refuses_in_eager_only(x):
    if not torch.compiler.is_compiling() and x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("for inference")
    return loses_the_gradient(x)


def refuses_under_no_grad(x):
    if x.requires_grad:
        raise RuntimeError("for inference")
    return loses_the_gradient(x)


def refuses_grad_mode(x):
    if torch.is_grad_enabled():
        raise RuntimeError("for inference")
    return loses_the_gradient(x)


def without_grad(x):
    with torch.no_grad():
        return loses_the_gradient(x)


GATE = {
    loses_the_gradient: "raise an error",
    refuses_in_eager_only: "raise an error",
    without_grad: "raise an error",
    plain: "one of the two plain calls does not trace",
    functional_everywhere: "in eager both collectives are cheaper in place",
    gates_both: "leave its gate out",
    drops_the_result: "use its result",
    forgets_the_factor: "the sum over the ranks of rank 0's numbers",
    without_the_sum: "the sum over the ranks of rank 0's numbers",
    writes_into_x: "write into a copy",
    copies_back: "do not copy it back",
    refuses_under_no_grad: "refuse only where",
    refuses_grad_mode: "refuse only where",
}


def start(x):
    return torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)


class Wrapper(torch.Tensor):
    """Right; its subclasses change one thing."""

    __slots__ = ["inner", "waited"]

    @staticmethod
    def __new__(cls, inner):
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        self.inner, self.waited = inner, False
        return self

    def read(self):
        if not self.waited:
            torch.ops._c10d_functional.wait_tensor(self.inner)
            self.waited = True
        return self.inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, cls.read, (args, kwargs or {}))
        return func(*args, **kwargs)


class Rungs:
    """Right; its subclasses change one thing."""

    @staticmethod
    def copied(x):
        y = x + 0
        dist.all_reduce(y)
        return y

    @staticmethod
    def operators(x):
        return torch.ops._c10d_functional.wait_tensor(start(x))

    @staticmethod
    def lazy(x):
        return Wrapper(start(x))

    @classmethod
    def made(cls):
        return {name: getattr(cls, name) for name in ("copied", "operators", "lazy")}


def rungs_with(**changed):
    """A function that returns the right rungs with some of them changed."""
    return lambda: {**Rungs.made(), **changed}


def in_place(x):
    dist.all_reduce(x)
    return x


def only_a_copy(x):
    return x.clone()


def wrapped_by_torch(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def functional_copied(x):
    return wrapped_by_torch(x) + 0


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return sum(parts)


def returns_what_went_in(x):
    y = start(x)
    torch.ops._c10d_functional.wait_tensor(y)
    return y


def never_waited(x):
    return start(x)


def detached(x):
    return torch.ops._c10d_functional.wait_tensor(start(x.detach()))


def waited_at_once(x):
    return Wrapper(torch.ops._c10d_functional.wait_tensor(start(x)))


def made_by(**changed):
    kind = type("Changed", (Wrapper,), {"__slots__": [], **changed})
    return lambda x: kind(start(x))


def reads_without_a_wait(cls, func, types, args=(), kwargs=None):
    args, kwargs = tree_map_only(cls, lambda lazy: lazy.inner, (args, kwargs or {}))
    return func(*args, **kwargs)


def waits_each_time(cls, func, types, args=(), kwargs=None):
    def read(lazy):
        return torch.ops._c10d_functional.wait_tensor(lazy.inner)

    args, kwargs = tree_map_only(cls, read, (args, kwargs or {}))
    return func(*args, **kwargs)


def not_into_lists(cls, func, types, args=(), kwargs=None):
    args = [arg.read() if isinstance(arg, cls) else arg for arg in args]
    return func(*args, **(kwargs or {}))


def not_into_keywords(cls, func, types, args=(), kwargs=None):
    return func(*tree_map_only(cls, cls.read, args), **(kwargs or {}))


def without_keywords(cls, func, types, args=(), kwargs=None):
    return func(*tree_map_only(cls, cls.read, args))


def wrapped_again(cls, func, types, args=(), kwargs=None):
    args, kwargs = tree_map_only(cls, cls.read, (args, kwargs or {}))
    result = func(*args, **kwargs)
    return cls(result) if isinstance(result, torch.Tensor) else result


def another_shape(cls, inner):
    self = torch.Tensor._make_wrapper_subclass(cls, (inner.numel(),), dtype=inner.dtype, device=inner.device)
    self.inner, self.waited = inner, False
    return self


def dispatches(function):
    return made_by(__torch_dispatch__=classmethod(function))


RUNGS = {
    rungs_with(copied=in_place): "leaves it as it was",
    rungs_with(copied=only_a_copy): "every rank returns the sum",
    rungs_with(copied=functional_copied): "no functional operator yet",
    rungs_with(copied=gathered): "no other collective",
    rungs_with(operators=returns_what_went_in): "return that one, not what went in",
    rungs_with(operators=wrapped_by_torch): "puts a wrapper around them",
    rungs_with(operators=never_waited): "one wait_tensor for its result",
    rungs_with(operators=detached): "call them with autograd as it is",
    rungs_with(lazy=wrapped_by_torch): "a class of your own",
    rungs_with(lazy=waited_at_once): "the call has waited already",
    rungs_with(lazy=dispatches(reads_without_a_wait)): "the numbers are read without a wait",
    rungs_with(lazy=dispatches(waits_each_time)): "keep a note in the wrapper",
    rungs_with(lazy=dispatches(wrapped_again)): "return the operation's own result",
    rungs_with(lazy=dispatches(not_into_lists)): "a wrapper can be inside an argument",
    rungs_with(lazy=dispatches(not_into_keywords)): "look for it in kwargs as well",
    rungs_with(lazy=dispatches(without_keywords)): "may be None: hand them on",
    rungs_with(lazy=made_by(__new__=staticmethod(another_shape))): "are those of the tensor inside",
    lambda: (in_place, in_place, in_place): "a dict of three functions",
}


def said(**changed):
    """A function that returns the right report with some jobs changed."""
    right = {
        "A": ({1}, "type", "wait before the call"),
        "B": (0, "form", "in place"),
        "C": ((0, 1), "gradient", "g"),
    }
    return lambda: {**right, **changed}


REPORTS = {
    said(A=([0], "type", "wait before the call")): "which of them compiles twice",
    said(A=([1], "form", "in place")): "which property of h",
    said(A=([1], "type", "dynamic=True")): "this guard is about a type",
    said(B=([0, 1], "form", "in place")): "the extra ones are on one rank only",
    said(B=([0], "late rank", "longer timeout")): "what does one of them call",
    said(B=([0], "form", "gate")): "nothing is compiled here",
    said(C=([1], "gradient", "g")): "compiled line with its one process",
    said(C=([0, 1], "form", "g")): "the losses agree",
    said(C=([0, 1], "gradient", "functional")): "twice as much, in both modes",
    said(C=([0, 1], "gradient", "gate")): "what makes the two modes differ",
    said(A=([1], "slow", "gate")): "one of 'type', 'form'",
    lambda: [1, 0]: "ranks, cause and change of each job",
}

WRONG = {"trap.gate": GATE, "trap.rungs": RUNGS, "trap.reports": REPORTS}

"""Finds the steps of a program that nobody changed for it, and records some of them."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from oddrank.look.callables import Made
from oddrank.look.conditions import Condition
from oddrank.look.switch_effects import Seen
from oddrank.look.uncompiled import Uncompiled
from oddrank.look.ways import Way
from oddrank.record import Record, install, record
from oddrank.record.compiles import Try
from oddrank.torch_names import ddp_forward_point, hide_from_dynamo, on_generator

__all__ = ["LATER", "Options", "Steps", "watching"]

LATER = 20  # steps that are timed after the recorded ones


@dataclass(frozen=True)
class Options:
    """Which steps to record.

    Args:
        skip: Steps that run before the first recorded one: they compile.
        steps: Steps to record.
        step: The name of the function whose calls are the steps; '' to find steps by compiled calls and
            `optimizer.step`.
        values: Whether to keep what each rank computes, in `values-N.pt` (`oddrank.look.values`).
        condition: What differs on one rank, in a run whose decisions are compared; None in any other.
        way: How the script runs on all ranks, in a run whose numbers are compared step by step; None in any other.
    """

    skip: int = 2
    steps: int = 3
    step: str = ""
    values: bool = False
    condition: Condition | None = None
    way: Way | None = None


class Steps:
    """Counts the steps of a program and records those that were asked for.

    A step of a program that has an optimizer begins with the first compiled call in which gradients are on, or with the
    forward of DDP or of `fully_shard` around it, whose collectives come first, and ends when `optimizer.step` does.
    Without an optimizer each compiled call is one, and is called a forward. A compiled call inside another one is part
    of it.

    Args:
        options: Which steps.
        done: Called as soon as the last one was recorded.
        first: Called as soon as the first step begins, recorded or not.

    Attributes:
        began: When it was made, in seconds of `time.monotonic()`.
        found: Number of steps so far.
        open: Whether the last of them has not ended.
        calls: Number of compiled calls so far.
        updates: Number of calls of an optimizer's step so far.
        rec: The record; None before the first recorded step.
        note: What kept it from recording, or from recording operators.
        since_ns: The `time.time_ns()` of the first recorded step; 0 before it.
        after: What this rank held right after the last recorded step: its `replicas` and its `calls`.
        made: What torch.compile made.
        forwards: Names of what decorates their forwards, as `callables.name_forwards` keeps them.
        seen: What switches did.
        around: Calls of what is compiled within another module, outside of compiled calls.
        noted: Tables of what was noted in the whole run, by name.
        begins, given, returned, backwards, optimized: Called up to the last recorded step, in this order: when a step
            begins; with what a compiled call is given; with what it returns, and its callable; with the losses of a
            backward before it; with an optimizer before its step. What the last two return is called after it. A loss
            is a number on which the program calls `Tensor.backward` or `torch.autograd.backward`.
        done: Called as soon as the last step was recorded.
        updated: Called before each step of an optimizer in the run.
        keep_values: Writes what this rank computed to a file.
        took: Seconds of the `first` step, with what it compiles; of the `recorded` steps, and of up to `LATER` steps
            after them, `later`, without those in which something was compiled.
    """

    def __init__(
        self,
        options: Options,
        done: Callable[[], None] = lambda: None,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        self.options, self._first = options, first
        self.began = time.monotonic()
        self.found = self.calls = self.updates = 0
        self.rec: Record | None = None
        self.note = ""
        self.since_ns = 0
        self.after: dict[str, pd.DataFrame] = {}
        self.made: list[Made] = []
        self.forwards: dict[tuple[str, int], set[str]] = {}
        self.seen, self.around = Seen(self.enters), Uncompiled()
        self.noted: dict[str, Callable[[], pd.DataFrame]] = {"around": self.around.table}
        self.begins: list[Callable[[], object]] = []
        self.given: list[Callable[[tuple[Any, ...], dict[str, Any]], object]] = []
        self.returned: list[Callable[[Any, Made], object]] = []
        self.backwards: list[Callable[[list[torch.Tensor]], Callable[[], object] | None]] = []
        self.optimized: list[Callable[[Any], Callable[[], object] | None]] = []
        self.done: list[Callable[[], object]] = [done]
        self.updated: list[Callable[[], object]] = []
        self.keep_values: Callable[[Path], object] = lambda _: None
        self.took: dict[str, list[float]] = {"first": [], "recorded": [], "later": []}
        self._began = 0.0  # when the first step began
        self._clock = 0.0  # when the step that is timed began
        self._compiled = False  # whether something was compiled since
        self._trains = self._inside = self._stepping = self._backing = False
        self.open = self._over = self._timed = False
        self._thread = threading.get_ident()
        self._mark = contextlib.ExitStack()
        self._record = contextlib.ExitStack()

    # --- what the hooks call ---

    def compiled(self, of: Made, made: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a compiled callable, which may begin a step."""
        self.around.enter(of)
        try:
            return self._compiled_call(of, made, *args, **kwargs)
        finally:
            self.around.leave(of)

    def _compiled_call(self, of: Made, made: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        of.calls += 1
        self.seen.called()
        of.recorded += self.open and self.rec is not None
        if self._timed or self._inside or threading.get_ident() != self._thread:
            return made(*args, **kwargs)
        self._inside = True
        self.calls += not self._over
        by_itself, first = not self._trains and not self.options.step, not self.open
        try:
            if by_itself or (not self.options.step and torch.is_grad_enabled()):
                self._begin()
                of.recorded += first and self.open and self.rec is not None
            self._hear(self.given, args, kwargs)
            found = made(*args, **kwargs)
            self._hear(self.returned, found, of)
            return found
        finally:
            self._inside = False
            if by_itself:
                self._end()

    def enters(self) -> None:
        """Note that a forward of DDP or of `fully_shard` begins; it may hold compiled calls, and begins a step then."""
        own = not self.options.step and threading.get_ident() == self._thread
        inside = self._inside or self._timed
        if own and self._trains and self.made and not inside and torch.is_grad_enabled():
            self._begin()

    def before_forward(self, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call what DDP does before a module's forward."""
        self.enters()
        return original(*args, **kwargs)

    def _hear(self, listeners: list[Callable[..., Any]], *of: Any) -> list[Callable[[], object]]:
        """Call listeners, up to the last recorded step; what they return to be called after it."""
        if self._over:
            return []
        return [after for hear in listeners if (after := hear(*of)) is not None]

    def optimizer(self, step: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call an optimizer's `step`, which ends a step."""
        self.updates += 1
        for hear in self.updated:
            hear()
        if self._timed or self._stepping:  # one optimizer may call another
            return step(*args, **kwargs)
        self._stepping = True
        ends = self._hear(self.optimized, *args[:1]) if args else []
        try:
            found = step(*args, **kwargs)
            for end in ends:
                end()
            return found
        finally:
            self._stepping = False
            if not self.options.step:
                self._end()

    def backward(self, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `Tensor.backward` or `torch.autograd.backward`; the one may call the other."""
        if self._backing or self._timed or threading.get_ident() != self._thread:
            return original(*args, **kwargs)
        ends = self._hear(self.backwards, _losses(args[0] if args else kwargs.get("tensors")))
        self._backing = True
        try:
            return original(*args, **kwargs)
        finally:
            self._backing = False
            for end in ends:
                end()

    def named(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function that is the step."""
        if self._timed or self.open or self._clock or threading.get_ident() != self._thread:
            return fn(*args, **kwargs)
        self._begin()
        try:
            return fn(*args, **kwargs)
        finally:
            self._end()

    @property
    def recording(self) -> bool:
        """Whether a step is under way that is recorded."""
        return self.open and self.rec is not None

    def trains(self) -> None:
        """Note that there is an optimizer."""
        self._trains = True

    def compiles(self, _: Try) -> None:
        """Note that a compile begins or ends."""
        self._compiled = True

    # --- recording ---

    def _begin(self) -> None:
        if self.open:
            return
        if self._over:
            if not self._clock:
                self._start_clock()
            return
        self.open = True
        self.found += 1
        if self.found == 1:
            self._first()
            self._began = time.perf_counter()
        self._hear(self.begins)
        if self.found <= self.options.skip:
            return
        if self.rec is None:
            self._start()
        if self.rec is not None:
            mark = self.rec.step if self._trains or self.options.step else self.rec.forward
            self._mark.enter_context(mark())
            self._start_clock()

    def _start_clock(self) -> None:
        self._clock, self._compiled = time.perf_counter(), False

    def _start(self) -> None:
        self.since_ns = time.time_ns()
        for operators in (True, False):
            try:
                self.rec = self._record.enter_context(record(operators=operators))
                break
            except ValueError as error:  # the program has a profiler open, or a record
                self.note = str(error)
        install().compiles.keep_stages = True  # guards, for the comparison of ranks

    def _end(self) -> None:
        if self._clock:
            if not self._compiled:
                self.took["later" if self._over else "recorded"].append(time.perf_counter() - self._clock)
            self._clock = 0.0
            self._timed = len(self.took["later"]) >= LATER
        if not self.open:
            return
        self.open = False
        if self.found == 1:
            self.took["first"].append(time.perf_counter() - self._began)
        self._mark.close()
        if self.found == self.options.skip + self.options.steps:
            self.close()
            for call in self.done:
                call()

    def close(self) -> None:
        """End the record; a step that is open ends here."""
        self._over = True
        self._mark.close()
        self._record.close()


@contextlib.contextmanager
def watching(steps: Steps) -> Iterator[None]:
    """Tell `steps` of compiled calls, of backwards and of `optimizer.step` in a block.

    Torch is as it was when the block ends; what was compiled inside keeps a wrapper that does nothing.

    Args:
        steps: Hears of them.
    """
    log = install().compiles
    log.keep_stages = True
    log.listeners.append(steps.compiles)
    compile_, init = torch.compile, torch.optim.Optimizer.__init__
    method, function = torch.Tensor.backward, torch.autograd.backward

    @functools.wraps(compile_)
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile, **options)
        made = compile_(model, **options)
        if made is model:  # compiling is switched off
            return made
        steps.made.append(Made.of(model, options))
        install().hook()  # before `seen`, which takes its own back in the end
        steps.seen.attach(options.get("backend", "inductor") == "inductor")
        around = functools.partial(steps.compiled, steps.made[-1])
        if isinstance(made, torch.nn.Module):
            made.forward = wrapped(made.forward, around)
            return made
        return wrapped(made, around)

    @functools.wraps(init)
    def made(self: Any, /, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        steps.trains()
        # bound, because schedulers ask for its function; on the object, because Dynamo unwraps those of classes
        self.step = types.MethodType(wrapped(type(self).step, steps.optimizer), self)

    torch.compile, torch.optim.Optimizer.__init__ = compile, made  # type: ignore[assignment, method-assign]
    torch.Tensor.backward = wrapped(method, steps.backward)  # type: ignore[method-assign, assignment]
    torch.autograd.backward = wrapped(function, steps.backward)
    _, before_forward, replace = ddp_forward_point()
    try:
        with replace(wrapped(before_forward, steps.before_forward)), on_generator(install().refused):
            yield
    finally:
        torch.compile, torch.optim.Optimizer.__init__ = compile_, init  # type: ignore[method-assign]
        torch.Tensor.backward, torch.autograd.backward = method, function  # type: ignore[method-assign]
        log.keep_stages = False
        log.listeners.remove(steps.compiles)
        steps.seen.close()
        steps.around.close()
        steps.close()


def _losses(given: Any) -> list[torch.Tensor]:
    every = given if isinstance(given, (tuple, list)) else [given]
    return [one for one in every if isinstance(one, torch.Tensor) and one.numel() == 1]


def wrapped(fn: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    """Make `around(fn, ...)` of every call of `fn` that Dynamo does not trace; what it traces is `fn` itself.

    Args:
        fn: The function, whose attributes the wrapper shares: Dynamo knows compiled functions by them.
        around: Called in its place.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        return around(fn, *args, **kwargs)

    hide_from_dynamo(call.__code__)  # type: ignore[attr-defined]
    return call


_HOOKS = (Steps.compiled, Steps._compiled_call, Steps.optimizer, Steps.backward, Steps.named)
hide_from_dynamo(*(one.__code__ for one in (*_HOOKS, Steps.before_forward)))
# a step may begin and end between the regions of a compiled function, where Dynamo compiles what is called
_CALLED = (Steps._begin, Steps._end, Steps.enters, Steps._hear, _losses)
hide_from_dynamo(*(one.__code__ for one in _CALLED), calls=True)

"""The guardrail of the eager path: it counts dispatched operations, not time. Copy this file; it needs only torch.

    def test_eager_stays_in_place():
        assert_in_place(lambda: model(x))

Time cannot guard a gate: a shared CI machine is noisy, and a slow link hides the cost. The operations that the
dispatcher ran are the same on every run and every machine.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

__all__ = ["assert_in_place", "dispatched"]

# an operation of the dispatcher, such as aten::copy_; the profiler's own ranges are none
_OPERATION = re.compile(r"(?!profiler::|autograd::|torch::)\w+::[\w.]+")
# where communication begins: c10d's operation, or the range of a backend that is none, such as shm:all_reduce
_COLLECTIVE = re.compile(r"c10d::\w+|[a-z]+:\w+")
_FUNCTIONAL = re.compile(r"_?c10d_functional(_autograd)?::\w+")
_MARK = "the guarded call"


def dispatched(call: Callable[[], Any]) -> Counter[str]:
    """Call `call()` once, and count the operations that it dispatches on this thread, by name.

    What a collective does inside is the backend's own work and not counted. What the call builds once (a cache, a
    compiled graph) would count: call it before. No other torch profiler may run in this process.

    >>> import torch
    >>> x = torch.ones(4)
    >>> dispatched(lambda: x.neg_())
    Counter({'aten::neg_': 1})
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler's first start writes a line to stderr
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as prof:  # or torch 2.12 warns
        with record_function(_MARK):
            call()
        # gloo's threads write a collective's end into the profile; a copy of this file does not wait for that
        with contextlib.suppress(ImportError):
            from labkit.trace.profiler import collectives_end

            collectives_end()
    events = prof.events()
    here = {event.thread for event in events if event.name == _MARK}
    found: Counter[str] = Counter()
    for event in events:
        if event.thread not in here:
            continue  # gloo copies on threads of its own, now before and now after the profile ends
        is_range = not event.is_async and _COLLECTIVE.fullmatch(event.name)
        if (is_range or _OPERATION.fullmatch(event.name)) and not _inside_collective(event):
            found[event.name] += 1
    return found


def assert_in_place(call: Callable[[], Any], at_most: int | None = None, at_least: int = 1) -> Counter[str]:
    """Call an eager path once, and raise AssertionError where its collectives are not the in-place ones.

    That is where a functional collective, or a wait for one, was dispatched; where fewer than `at_least` collectives
    ran, because a guard that sees none guards nothing; and where more than `at_most` operations ran, if a number is
    given (copies and allocations that a project wants to know of).

    Args:
        call: The eager path. Call it before, so that nothing is built here.
        at_most: The most operations.
        at_least: The fewest collectives.

    Returns:
        The number of operations by name.

    Raises:
        AssertionError: In the three cases above.

    >>> import torch
    >>> assert_in_place(lambda: torch.ones(4).neg_())
    Traceback (most recent call last):
    AssertionError: 0 collectives ran, at least 1 was expected: this guards nothing
    """
    found = dispatched(call)
    functional = {name: n for name, n in found.items() if _FUNCTIONAL.fullmatch(name)}
    if functional:
        said = ", ".join(f"{n} {name}" for name, n in functional.items())
        raise AssertionError(f"the eager path went functional: {said}, of {found.total()} operations")
    collectives = sum(n for name, n in found.items() if _COLLECTIVE.fullmatch(name))
    if collectives < at_least:
        expected = f"at least {at_least} {'was' if at_least == 1 else 'were'} expected"
        raise AssertionError(f"{collectives} collectives ran, {expected}: this guards nothing")
    if at_most is not None and found.total() > at_most:
        most = ", ".join(f"{n} {name}" for name, n in found.most_common(5))
        raise AssertionError(f"{found.total()} operations ran, at most {at_most} were expected: {most}")
    return found


def _inside_collective(event: Any) -> bool:
    above = event.cpu_parent
    while above is not None:
        if _COLLECTIVE.fullmatch(above.name):
            return True
        above = above.cpu_parent
    return False

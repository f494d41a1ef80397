"""What a call carries to the ranks, and what must not get in its way."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

import cloudpickle

from labkit import places
from labkit.ranks import wire


def positive(name: str, value: Any, none: bool = False) -> float | None:
    """The value. Raises ValueError unless it is a number above 0 (or None, with `none`)."""
    if value is None and none:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} must be a number above 0{' or None' if none else ''}, got {value!r}")
    return value


def checkable(check: Any, backend: str) -> None:
    """Raise ValueError unless `Ranks(check=...)` can be had on a backend."""
    if check not in (None, "collectives"):
        raise ValueError(f"check must be None or 'collectives', got {check!r}")
    if check and backend not in ("gloo", "shm"):
        raise ValueError(f"check='collectives' works on gloo and shm, and this is {backend}")


def travel(value: Any, what: str) -> bytes:
    """The value as bytes. Raises ValueError naming `what` and why it cannot travel."""
    stays = "a compiled object stays in its process: call torch.compile inside the function"
    if _compiled(value):  # torch 2.11 would let it go, and call it wrongly there
        raise ValueError(f"{what} cannot travel to the ranks: {stays}")
    if error := _refused(value):
        hint = f"; {stays}" if type(value).__name__ == "OptimizedModule" else ""
        used, cause = _culprit(value, set()) or ("", error)
        raise ValueError(f"{what} cannot travel to the ranks: {used}{_reason(cause)}{hint}") from None
    return wire.dumps(value)


def packed(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> tuple[bytes, wire.Packed]:
    """A call as it travels. Raises ValueError naming what of it cannot, or why the function is none to be called."""
    if not callable(fn):
        raise ValueError(f"run() needs a function, got {type(fn).__name__}")
    name = getattr(fn, "__name__", type(fn).__name__)
    if any(map(_waits, (fn, type(fn).__call__))):
        raise ValueError(
            f"run() needs a function that runs when it is called, and {name!r} is an async def: "
            "give one that calls asyncio.run(...)"
        )
    follow_edits(fn)
    function = travel(fn, f"function {name!r}")
    try:
        return function, wire.pack((args, kwargs))
    except Exception:
        for where, value in [
            *((f"argument {i + 1}", v) for i, v in enumerate(args)),
            *((f"argument {k}=", v) for k, v in kwargs.items()),
        ]:
            travel(value, f"{where} ({type(value).__name__})")
        raise


def _waits(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)


def _refused(value: Any) -> Exception | None:
    """Why a value does not travel; None where it does."""
    try:
        wire.dumps(value)
    except Exception as error:
        return error
    return None


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _culprit(fn: Any, seen: set[int]) -> tuple[str, Exception] | None:
    """Which variable keeps a function from travelling, in words, and why; None where it is no variable."""
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, FunctionType) or id(fn) in seen:
        return None
    seen.add(id(fn))
    for name, value in _variables(fn).items():
        if error := _refused(value):
            return _culprit(value, seen) or (f"variable {name!r} in {fn.__name__}(): ", error)
    return None


def _variables(fn: FunctionType) -> dict[str, Any]:
    """The variables from outside that a function, and the functions in it, use."""
    names, codes = set(), [fn.__code__]
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
    found = {name: fn.__globals__[name] for name in sorted(names & fn.__globals__.keys())}
    return {**found, **inspect.getclosurevars(fn).nonlocals}


def _compiled(value: Any) -> bool:
    """Whether it is a function of torch.compile's; what `torch.compiler.disable` made looks alike, and travels."""
    return hasattr(value, "_torchdynamo_orig_callable") and not (
        getattr(value, "_torchdynamo_disable", False) or type(value).__name__ == "OptimizedModule"
    )


def follow_edits(fn: Callable[..., Any]) -> None:
    """Send functions of the reader's own modules by value, as a notebook's are: the ranks then run today's code."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ in ("__main__", *_followed):
        return
    if not places.is_library(file) and module.__name__.partition(".")[0] != "labkit":
        cloudpickle.register_pickle_by_value(module)
        _followed.add(module.__name__)


_followed: set[str] = set()


@contextmanager
def no_interrupt(linger: float = 0.0) -> Iterator[None]:
    """Hold SIGINT back while ranks are being replaced: a second press of stop must not leave half of them.

    For `linger` seconds more a press is taken for part of the one before: it would hit IPython as it shows the error.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    # None: a handler that was not set from Python, which cannot be put back
    previous = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number)) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _after(time.monotonic() + linger, previous) if linger else previous)


def _after(until: float, previous: Any) -> Callable[[int, FrameType | None], None]:
    """A SIGINT handler that does nothing before `until` and hands over to the previous one for good then."""

    def handler(number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= until:
            signal.signal(signal.SIGINT, previous)
            signal.raise_signal(number)

    return handler

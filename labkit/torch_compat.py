"""The only file that touches a private or version-dependent torch name.

Everything here works on torch 2.11 to 2.15; a name that the installed torch lacks raises `UnsupportedTorch`,
which says the name, the installed version and the supported range.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

SUPPORTED = ("2.11", "2.15")


class UnsupportedTorch(RuntimeError):
    """The installed torch is outside the supported range, or lacks a name that labkit needs."""


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def check_version(version: str) -> None:
    """Raise UnsupportedTorch when `version` (such as '2.13.0+cpu') is outside 2.11 to 2.15.

    >>> check_version("2.13.0+cpu")
    """
    if not _numbers(SUPPORTED[0]) <= _numbers(version) <= _numbers(SUPPORTED[1]):
        low, high = SUPPORTED
        raise UnsupportedTorch(f"torch {version} is installed; labkit supports torch {low} to {high}")


def require(dotted: str) -> Any:
    """Import a private torch name by its dotted path, or say which torch lacks it.

    >>> require("torch.distributed._functional_collectives").__name__
    'torch.distributed._functional_collectives'
    """
    module, _, name = dotted.rpartition(".")
    try:
        try:
            return importlib.import_module(dotted)
        except ModuleNotFoundError:
            return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        import torch

        low, high = SUPPORTED
        raise UnsupportedTorch(
            f"torch {torch.__version__} has no {dotted}, which this needs; labkit supports torch {low} to {high}"
        ) from None


def __getattr__(name: str) -> Any:
    """`funcol`, resolved on first use so that importing this module imports no torch."""
    if name == "funcol":
        return require("torch.distributed._functional_collectives")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def dynamo_reset() -> None:
    """Forget everything Dynamo compiled or skipped in this process (`torch._dynamo.reset`)."""
    require("torch._dynamo").reset()


def fake_store() -> Any:
    """A store for the 'fake' backend, whose collectives return at once and move nothing (torch's testing fake_pg)."""
    return require("torch.testing._internal.distributed.fake_pg").FakeStore()


# --- recording: the structured trace and the profiler ---


def trace_logger() -> logging.Logger:
    """The logger of torch's structured trace (torch/_logging/_internal.py), which is silent until it has a handler."""
    return logging.getLogger("torch.__trace")


def profiler_running() -> bool:
    """Whether a torch profiler is on in this process."""
    import torch

    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def quiet_profiler() -> None:
    """Keep kineto from writing 'profiler_start' to stderr; it reads this once, when it first starts."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def profiler_events(profiler: Any) -> list[Any]:
    """The raw events of a stopped `torch.profiler.profile`: kineto's own, without the slow tree of FunctionEvents."""
    results = getattr(profiler.profiler, "kineto_results", None)
    if results is None:
        raise UnsupportedTorch("this torch's profiler does not give its raw events (profiler.kineto_results)")
    return results.events()


def profiler_mark(name: str, tensors: Sequence[Any] = ()) -> Any:
    """A range in the profile, as a context manager: about 1 us, where the public `record_function` takes 20.

    Where the profile asks for shapes, it has those of `tensors`. Guard calls with `profiler_running()`: a mark is not
    free without a profile either.
    """
    import torch

    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    return fast(name, list(tensors)) if fast else torch.profiler.record_function(name)


def dynamo_frames_seen() -> int | None:
    """How many frames Dynamo has numbered since it was last reset; None where this torch does not say."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return getattr(module, "FRAME_COUNTER", 0 if module is None else None)


def compilation_metrics() -> list[Any]:
    """The metrics of the last compiles (64 by default), which torch keeps whether or not anyone listens."""
    if "torch._dynamo.utils" not in sys.modules:
        return []
    return list(require("torch._dynamo.utils").get_compilation_metrics())

"""Listening: the structured trace, the profiler, entry into compiled code, compile ids and Dynamo's bytecode."""

from __future__ import annotations

import logging
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from labkit.torch_compat.compiler import hide_from_dynamo
from labkit.torch_compat.versions import Feature, UnsupportedTorch, require, there

_MARK, _FLAG = "record_pregraph_bytecode_enter", "_is_profiler_enabled"
_ASKS_FIRST = (
    "torch._dynamo.codegen._pregraph_marker_enter_template"  # calls _MARK only while a profiler is on
)
_PROFILER = "__import_torch_dot_autograd_dot_profiler"  # as compiled code calls the module

FEATURES = (
    Feature(
        "ranges and raw events of the profiler",
        "2.11",
        "2.15",
        (
            "torch.autograd.profiler._is_profiler_enabled",
            "torch.autograd._profiler_enabled",
            "torch.autograd.profiler.profile",  # whose objects have kineto_results
            "torch._C._profiler._RecordFunctionFast",
        ),
        "the timelines of `record`, and the `shm` backend",
    ),
    Feature(
        "what was compiled, by its id",
        "2.11",
        "2.15",
        (
            "torch._dynamo.utils.get_compilation_metrics",
            "torch._dynamo.convert_frame.FRAME_COUNTER",
            "torch._guards.CompileContext.current_compile_id",
        ),
        "`record` cannot say which compile a graph came from, nor tell the story of compiles before it",
    ),
    Feature(
        "entry into compiled code",
        "2.11",
        "2.15",
        (
            "torch._dynamo.utils.record_pregraph_bytecode_enter",
            "torch.autograd.profiler._is_profiler_enabled",  # that, from 2.15 on
        ),
        "the counts of executed regions in `record`, and `contract`'s compile health",
    ),
    Feature(
        "Dynamo's bytecode",
        "2.11",
        "2.15",
        ("torch._dynamo.convert_frame.register_bytecode_hook",),
        "`record(stages=True)` and the code around graphs with streams",
    ),
)


def trace_logger() -> logging.Logger:
    """The logger of torch's structured trace (torch/_logging/_internal.py), which is silent until it has a handler."""
    return logging.getLogger("torch.__trace")


def profiler_running() -> bool:
    """Whether a torch profiler is on in this process."""
    import torch

    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


_CLEARS = "Warning: Profiler clears events at the end of each cycle"


def quiet_profiler() -> None:
    """Keep kineto from writing 'profiler_start' to stderr; it reads this once, when it first starts.

    torch 2.11 and 2.12 also warn at every first start about a second one: 'Profiler clears events'.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    if not any(getattr(known[1], "pattern", known[1]) == _CLEARS for known in warnings.filters):
        warnings.filterwarnings("ignore", message=_CLEARS)  # each call would let old warnings show again


def profiler_events(profiler: Any) -> list[Any]:
    """The raw events of a stopped `torch.profiler.profile`: kineto's own, without the slow tree of FunctionEvents."""
    results = getattr(profiler.profiler, "kineto_results", None)
    if results is None:
        raise UnsupportedTorch("this torch's profiler does not give its raw events (profiler.kineto_results)")
    return results.events()


def event_shapes(event: Any) -> list[Any]:
    """The shapes of a raw event's inputs; torch 2.11 leaves out those of a list of tensors."""
    asked = getattr(event, "structured_input_shapes", None) or event.shapes
    return list(asked())


def profiler_mark(name: str, tensors: Sequence[Any] = ()) -> Any:
    """A range in the profile, as a context manager: about 1 us, where the public `record_function` takes 20.

    Where the profile asks for shapes, it has those of `tensors`. Guard calls with `profiler_running()`: a mark is not
    free without a profile either.
    """
    import torch

    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    return fast(name, list(tensors)) if fast else torch.profiler.record_function(name)


def profiling_flag() -> Callable[[], bool]:
    """A function that says in 60 ns whether a profiler listens on the calling thread."""
    return require("torch.autograd._profiler_enabled")


def fast_range(name: str) -> Any:
    """A context that the profiler shows as a range, at a tenth of what `record_function` costs."""
    return require("torch._C._profiler")._RecordFunctionFast(name)


def dynamo_frames_seen() -> int | None:
    """How many frames Dynamo has numbered since it was last reset; None where this torch does not say."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return getattr(module, "FRAME_COUNTER", 0 if module is None else None)


def compilation_metrics() -> list[Any]:
    """The metrics of the last compiles (64 by default), which torch keeps whether or not anyone listens."""
    if "torch._dynamo.utils" not in sys.modules:
        return []
    return list(require("torch._dynamo.utils").get_compilation_metrics())


def current_compile_id() -> str:
    """The id of the compile that this thread is in, as the structured trace writes it; '' outside of one."""
    compile_id = require("torch._guards").CompileContext.current_compile_id()
    return "" if compile_id is None else str(compile_id)


_entry_seen: list[Callable[[types.CodeType], None]] = []
_entry_undo: list[Callable[[], None]] = []  # what the last one to stop has to take back
_entry_lock = threading.Lock()


def on_region_entry(seen: Callable[[types.CodeType], None]) -> Callable[[], None]:
    """Call `seen(code)` where compiled code begins, before its graph runs; returns what ends that again.

    Several may listen, and end in any order: threads that rehearse ranks do.
    """
    hide_from_dynamo(seen.__code__)
    with _entry_lock:
        if there(_ASKS_FIRST):
            _listen_to_the_flag()
        elif not _entry_seen:
            _listen_to_the_mark()
        _entry_seen.append(seen)

    def stop() -> None:
        with _entry_lock:
            left = [listener for listener in _entry_seen if listener is not seen]
            if len(left) < len(_entry_seen):
                _entry_seen[:] = left
                while _entry_undo and not left:
                    _entry_undo.pop()()

    return stop


def _listen_to_the_mark() -> None:
    """What compiled code calls first, profiler or not, up to the torch that asks for one before."""
    utils = require("torch._dynamo.utils")
    original = require("torch._dynamo.utils.record_pregraph_bytecode_enter")

    def enter() -> Any:
        code = sys._getframe(1).f_code
        for listener in tuple(_entry_seen):
            listener(code)
        return original()

    hide_from_dynamo(enter.__code__)
    setattr(utils, _MARK, enter)
    _entry_undo.append(lambda: setattr(utils, _MARK, original))


def _listen_to_the_flag() -> None:
    """What compiled code of torch 2.15 reads first: whether a profiler is on. It gets the true answer.

    It stays once there: a module that changes its type again could fail guards that were made meanwhile.
    """
    profiler = require("torch.autograd.profiler")
    if hasattr(type(profiler), _FLAG):
        return

    def read(module: types.ModuleType) -> bool:
        if _entry_seen:
            code = sys._getframe(1).f_code
            if _PROFILER in code.co_names:  # no other code has it by this name
                for listener in tuple(_entry_seen):
                    listener(code)
        return bool(vars(module)[_FLAG])

    def write(module: types.ModuleType, value: bool) -> None:
        vars(module)[_FLAG] = value

    hide_from_dynamo(read.__code__)
    profiler.__class__ = type("ProfilerModule", (type(profiler),), {_FLAG: property(read, write)})


def bytecode_hook(hook: Callable[[types.CodeType, types.CodeType], Any]) -> Callable[[], None]:
    """Have Dynamo show every bytecode it reads and the one it makes of it; returns what ends that again.

    What the hook returns would replace Dynamo's bytecode, unless it is None.
    """
    return require("torch._dynamo.convert_frame").register_bytecode_hook(hook).remove

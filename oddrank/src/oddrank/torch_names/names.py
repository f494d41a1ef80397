"""How a private torch name is asked for, and the names that recording needs."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import pickle
import pkgutil
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

COMPILER = os.path.join("torch", "_dynamo", "convert_frame.py")  # on the stack while Dynamo compiles
DYNAMO = "torch._dynamo"
TRIED = ("2.11", "2.15")  # the first and the last minor version that it was run on


class UnsupportedTorch(RuntimeError):
    """The installed torch lacks a name that oddrank needs."""


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def within(version: str, since: str = TRIED[0], until: str = TRIED[1]) -> bool:
    """Say whether a torch version such as '2.13.0+cpu' is in a range, by default in the one that was tried.

    >>> within("2.13.0+cpu"), within("2.13.0", since="2.14"), within("2.14.1", until="2.14")
    (True, False, True)
    """
    return _numbers(since) <= _numbers(version) <= _numbers(until)


@functools.cache
def span(since: str, until: str) -> str:
    """Give a range of torch versions in words.

    Raises:
        ValueError: If it is no range within the versions that were tried.

    >>> span("2.12", "2.14"), span("2.13", "2.13")
    ('2.12 to 2.14', '2.13')
    """
    try:
        low, first, last, high = map(_numbers, (TRIED[0], since, until, TRIED[1]))
        right = low <= first <= last <= high
    except ValueError:
        right = False
    if not right:
        raise ValueError(f"from {since!r} to {until!r} is no range within torch {' to '.join(TRIED)}")
    return since if since == until else f"{since} to {until}"


def untried(version: str) -> str:
    """A sentence about a torch that oddrank was not run on; '' for one that it was, or for no version.

    >>> untried("2.13.0+cpu"), untried("3.1.0")
    ('', "torch 3.1.0: oddrank was run on torch 2.11 to 2.15, so compare its counts with torch's own")
    """
    found = re.match(r"\d{1,4}\.\d{1,4}", version)
    if found is None or within(found[0]):
        return ""
    return f"torch {version}: oddrank was run on torch {' to '.join(TRIED)}, so compare its counts with torch's own"


_MISSING = object()


def find(dotted: str, default: Any = None, *, since: str = TRIED[0], until: str = TRIED[1]) -> Any:
    """Import a torch name by its dotted path, where this torch has it.

    Args:
        dotted: A module, or an attribute of a module, class or object.
        default: What is returned where this torch lacks it.
        since: The first torch version that has it.
        until: The last one that was tried and has it.

    >>> find("torch._dynamo.nothing.such", "nothing")
    'nothing'

    Raises:
        ValueError: From `since` to `until` is no range within the versions that were tried.
    """
    span(since, until)
    home, _, name = dotted.rpartition(".")
    try:
        return getattr(sys.modules[home], name)  # 0.3 us where it is imported, and 15 us the other way
    except (KeyError, AttributeError):
        try:
            return pkgutil.resolve_name(dotted)
        except (ImportError, AttributeError):
            return default


def require(dotted: str, *others: str, since: str = TRIED[0], until: str = TRIED[1]) -> Any:
    """Import a torch name by its dotted path.

    Args:
        dotted: A module, or an attribute of a module, class or object.
        others: Names that it has on other versions; the first one that is there is taken.
        since: The first torch version that has one of them.
        until: The last one that was tried and has one.

    Raises:
        UnsupportedTorch: The installed torch lacks it.

    >>> require("torch._dynamo.nothing", since="2.14")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    oddrank.torch_names.names.UnsupportedTorch: torch ... has no torch._dynamo.nothing; torch 2.14 to 2.15 has it
    """
    for name in (dotted, *others):
        if (found := find(name, _MISSING, since=since, until=until)) is not _MISSING:
            return found
    import torch

    names = " or ".join((dotted, *others))
    raise UnsupportedTorch(f"torch {torch.__version__} has no {names}; torch {span(since, until)} has it")


def replaced(dotted: str, stand_in: Any, *, since: str = TRIED[0], until: str = TRIED[1]) -> Any:
    """Give a context in which something else stands in for a torch name; its `start()` leaves it there.

    Args:
        dotted: An attribute of a module or class.
        stand_in: What stands there instead.
        since: The first torch version that has it.
        until: The last one that was tried and has it.

    Raises:
        UnsupportedTorch: The installed torch lacks it.
    """
    require(dotted, since=since, until=until)
    return mock.patch(dotted, stand_in)


# --- the compiler ---


def hide_from_dynamo(*codes: types.CodeType, calls: bool = False) -> None:
    """Make Dynamo run these code objects as they are, and not compile them. Dynamo is not imported for it.

    Args:
        codes: The code objects.
        calls: Also run as it is what they call. Otherwise a function that they call may be compiled.
    """
    action = require("torch._C._dynamo.eval_frame._FrameAction")
    inside = action.SKIP if calls else action.DEFAULT
    skip = require("torch._C._dynamo.eval_frame._FrameExecStrategy")(action.SKIP, inside)
    hide = require("torch._C._dynamo.eval_frame.set_code_exec_strategy")
    for code in codes:
        hide(code, skip)


def is_fake(tensor: Any) -> bool:
    """Say whether a tensor is fake: it stands for another one while a program is traced."""
    if "torch._subclasses.fake_tensor" not in sys.modules:
        return False
    return isinstance(tensor, require("torch._subclasses.fake_tensor.FakeTensor"))


def on_graph(seen: Callable[[str, Any, Sequence[types.CodeType]], None]) -> Callable[[], None]:
    """Call `seen(compile id, graph module, traced code)` with every graph of Dynamo, before the backend gets it.

    Returns:
        A function that ends it.
    """
    usual = require("torch._dynamo.output_graph.OutputGraph.call_user_compiler")

    @functools.wraps(usual)
    def call(self: Any, gm: Any, *more: Any, **named: Any) -> Any:
        traced = getattr(getattr(self, "tracing_context", None), "traced_code", None) or ()
        seen(current_compile_id(), gm, traced)
        return usual(self, gm, *more, **named)

    swap = replaced("torch._dynamo.output_graph.OutputGraph.call_user_compiler", call)
    swap.start()
    return swap.stop


def on_generator(seen: Callable[[types.CodeType, str], None]) -> Any:
    """Give a context that calls `seen(code, why)` with each generator of which Dynamo gives up the frame.

    It does so before it begins a compile, so that its trace has none of them. Source: torch/_dynamo/convert_frame.py.
    """
    usual = require("torch._dynamo.convert_frame.ConvertFrameAssert.__call__")

    def call(self: Any, frame: Any, *more: Any, skip: int = 0, **named: Any) -> Any:
        try:
            return usual(self, frame, *more, skip=skip + 1, **named)
        except Exception as error:
            if frame.f_code.co_flags & inspect.CO_GENERATOR:
                seen(frame.f_code, str(error))
            raise

    return replaced("torch._dynamo.convert_frame.ConvertFrameAssert.__call__", call)


def being_compiled() -> tuple[Any, Any]:
    """Return the frame that Dynamo compiles now on this thread, and Python's frame that called it; None for none.

    The first one has `f_code` and `f_locals`, and no more that counts. Source: torch/_dynamo/convert_frame.py.
    """
    frame: Any = sys._getframe(1)
    found = None
    while frame is not None:
        inside = frame.f_code.co_filename.endswith(COMPILER)
        if found is None and inside:
            held = frame.f_locals.get("frame")
            found = held if hasattr(held, "f_code") else None
        elif found is not None and not inside:
            return found, frame
        frame = frame.f_back
    return None, None


def dynamo_reset() -> None:
    """Forget everything that Dynamo compiled or skipped in this process (`torch._dynamo.reset`)."""
    require("torch._dynamo.reset")()


def no_compile_caches() -> Any:
    """Give a context in which Inductor and AOTAutograd neither read nor fill their caches."""
    warnings.filterwarnings("ignore", "dynamo_pgo force disabled")  # said once, of what was asked for
    require("torch._inductor.config.force_disable_caches")
    return require("torch._inductor.config.patch")(force_disable_caches=True)


def uncompiled(fn: Any) -> Any:
    """Return the function or module that `torch.compile` was given; `fn` itself where it is not compiled."""
    inner = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", None)
    return fn if inner is None else inner


def hidden(fn: Any) -> bool:
    """Say whether a function is hidden from the compiler (`torch.compiler.disable`)."""
    return bool(getattr(fn, "_torchdynamo_disable", False))


def is_compiled(fn: Any) -> bool:
    """Say whether a function is one that `torch.compile` returned, or shares its attributes."""
    return hasattr(fn, "_torchdynamo_orig_callable") and not hidden(fn)


def compiled_in_place(module: Any) -> bool:
    """Say whether a module is one that `torch.compile` returned, or `module.compile()` was called."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def compiled_module_call() -> tuple[Callable[..., Any], Callable[[Any], Any]] | None:
    """Return the `__call__` of what `torch.compile` makes of a module, and how to replace it; None before the import.

    It warns where there is a hook for all modules.
    """
    if "torch._dynamo.eval_frame" not in sys.modules:
        return None
    return (
        require("torch._dynamo.eval_frame.OptimizedModule.__call__"),
        lambda new: replaced("torch._dynamo.eval_frame.OptimizedModule.__call__", new),
    )


def forced_eager() -> bool:
    """Say whether `torch.compiler.set_stance` lets compiled functions run in Python."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    return "eager" in str(getattr(require("torch._dynamo.eval_frame._stance"), "stance", ""))


# --- sources of a record ---


def trace_logger() -> logging.Logger:
    """Return the logger of torch's structured trace, which is silent until it has a handler."""
    return logging.getLogger("torch.__trace")


def traced_file(number: int) -> str:
    """Return the path of the file that torch's structured trace writes as a number; '' for an unknown one."""
    known = list(require("torch._logging.structured.INTERN_TABLE").items())
    return next((path for path, given in known if given == number), "")


def log_to(path: str, traces: str) -> None:
    """Write torch's logs to a file as well, and its structured trace to a new file in a folder.

    Torch reads TORCH_LOGS and TORCH_TRACE once, when it is imported; a process that was forked later reads them here
    again.

    Args:
        path: the file for the logs.
        traces: the folder for the trace.
    """
    asked = {
        require("torch._logging._internal.LOG_OUT_ENV_VAR"): path,
        require("torch._logging._internal.TRACE_ENV_VAR"): traces,
    }
    before = {name: os.environ.get(name) for name in asked}
    os.environ |= asked
    replaced("torch._logging._internal.LOG_TRACE_HANDLER", None).start()
    try:
        require("torch._logging._internal._init_logs")()
    finally:  # a compiler's own processes have files of their own
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def profiler_running() -> bool:
    """Say whether a torch profiler is on in this process."""
    return bool(require("torch.autograd.profiler._is_profiler_enabled"))


_CLEARS = "Warning: Profiler clears events at the end of each cycle"


def quiet_profiler() -> None:
    """Keep kineto from writing 'profiler_start' to stderr; it reads this once, when it first starts.

    torch 2.11 and 2.12 also warn at every first start about a second one: 'Profiler clears events'.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    if not any(getattr(known[1], "pattern", known[1]) == _CLEARS for known in warnings.filters):
        warnings.filterwarnings("ignore", message=_CLEARS)  # each call would let old warnings show again


def profiler_events(profiler: Any) -> list[Any]:
    """Read the raw events of kineto from a stopped `torch.profiler.profile`; its tree of FunctionEvents is slow."""
    results = getattr(profiler.profiler, "kineto_results", None)
    if results is None:
        raise UnsupportedTorch("this torch's profiler does not give its raw events (profiler.kineto_results)")
    return results.events()


def event_shapes(event: Any) -> list[Any]:
    """Read the shapes of a raw event's inputs; torch 2.11 leaves out those of a list of tensors."""
    asked = getattr(event, "structured_input_shapes", None) or event.shapes
    return list(asked())


def profiler_mark(name: str, tensors: Sequence[Any] = ()) -> Any:
    """Give a context that marks a range in the profile; it takes about 1 us, the public `record_function` 20.

    A mark is not free without a profile either: ask `profiler_running()` before.

    Args:
        name: of the range.
        tensors: whose shapes the profile has, where it asks for shapes.
    """
    return require("torch._C._profiler._RecordFunctionFast")(name, list(tensors))


def profiling_flag() -> Callable[[], bool]:
    """Return a function that says in 60 ns whether a profiler listens on the calling thread."""
    return require("torch.autograd._profiler_enabled")


def dynamo_frames_seen() -> int | None:
    """Count the frames that Dynamo has numbered since it was last reset; None where this torch does not say."""
    loaded = "torch._dynamo.convert_frame" in sys.modules
    return find("torch._dynamo.convert_frame.FRAME_COUNTER") if loaded else 0


def compilation_metrics() -> list[Any]:
    """Read torch's metrics of the last compiles, 64 by default; they are kept whether or not anyone listens."""
    if "torch._dynamo.utils" not in sys.modules:
        return []
    return list(require("torch._dynamo.utils.get_compilation_metrics")())


def current_compile_id() -> str:
    """Return the id of the compile that this thread is in, as the structured trace writes it; '' outside of one."""
    compile_id = require("torch._guards.CompileContext.current_compile_id")()
    return "" if compile_id is None else str(compile_id)


_entry_seen: list[Callable[[types.CodeType], None]] = []
_entry_undo: list[Callable[[], None]] = []  # what the last one to stop has to take back
_entry_lock = threading.Lock()


def on_region_entry(seen: Callable[[types.CodeType], None]) -> Callable[[], None]:
    """Call `seen(code)` whenever code that Dynamo made begins to run, on any thread.

    Several may listen, and end in any order: threads that rehearse ranks do. torch 2.11 shows only code that has a
    graph: see `sees_every_region`.

    Returns:
        A function that ends it.
    """
    hide_from_dynamo(seen.__code__)
    with _entry_lock:
        if not _entry_seen:
            _entry_undo.append(_listen_to_every_entry() if sees_every_region() else _listen_to_the_mark())
        _entry_seen.append(seen)

    def stop() -> None:
        with _entry_lock:
            left = [listener for listener in _entry_seen if listener is not seen]
            if len(left) < len(_entry_seen):
                _entry_seen[:] = left
                while _entry_undo and not left:
                    _entry_undo.pop()()

    return stop


def sees_every_region() -> bool:
    """Say whether `on_region_entry` shows code without a graph as well, as it does from torch 2.12 on."""
    return find("torch._C._dynamo.eval_frame.set_bytecode_debugger_callback", since="2.12") is not None


def _listen_to_every_entry() -> Callable[[], None]:
    """Through the callback of Dynamo's own debugger of bytecode, called right before any code that Dynamo made."""
    ask = find("torch._C._dynamo.eval_frame.get_bytecode_debugger_callback", since="2.12")
    tell = find("torch._C._dynamo.eval_frame.set_bytecode_debugger_callback", since="2.12")
    before = ask()

    def enter(code: types.CodeType) -> None:
        for listener in tuple(_entry_seen):
            listener(code)
        if before is not None:
            before(code)

    hide_from_dynamo(enter.__code__)
    tell(enter)

    def undo() -> None:
        if ask() is enter:
            tell(before)

    return undo


def _listen_to_the_mark() -> Callable[[], None]:
    """Through what compiled code calls before its graph, profiler or not."""
    original = require("torch._dynamo.utils.record_pregraph_bytecode_enter")

    def enter() -> Any:
        code = sys._getframe(1).f_code
        for listener in tuple(_entry_seen):
            listener(code)
        return original()

    hide_from_dynamo(enter.__code__)
    marked = replaced("torch._dynamo.utils.record_pregraph_bytecode_enter", enter)
    marked.start()
    return marked.stop


def compile_id_of(code: types.CodeType) -> str:
    """Return the id of the compile that made some code, while Dynamo holds that code for use; '' for other code."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return ""
    original = require("torch._dynamo.convert_frame.orig_code_map").get(code)
    if original is None:
        return ""
    held = require("torch._C._dynamo.eval_frame._debug_get_cache_entry_list")(original)
    return next((str(entry.compile_id) for entry in held if entry.code is code), "")


def bytecode_hook(hook: Callable[[types.CodeType, types.CodeType], Any]) -> Callable[[], None]:
    """Call `hook(before, after)` with every bytecode that Dynamo reads and the one that it makes of it.

    Args:
        hook: what it returns would replace Dynamo's bytecode, unless it is None.

    Returns:
        A function that ends it.
    """
    return require("torch._dynamo.convert_frame.register_bytecode_hook")(hook).remove


# --- process groups ---
def process_groups() -> list[Any]:
    """Return every process group that is up on this rank."""
    return list(require("torch.distributed.distributed_c10d._world").pg_map)


def group_members() -> dict[str, tuple[int, ...]]:
    """Return the ranks of every process group that is up on this rank, by the group's name."""
    dist: Any = sys.modules.get("torch.distributed")
    if not (dist and dist.is_available() and dist.is_initialized()):
        return {}
    try:
        return {
            str(group.group_name): tuple(dist.get_process_group_ranks(group)) for group in process_groups()
        }
    except (KeyError, RuntimeError, ValueError):  # a group is being made or destroyed
        return {}


def flight_record(stacks: bool = True) -> list[dict[str, Any]]:
    """Read the collectives that torch's flight recorder holds.

    Args:
        stacks: with the Python stack of each call. They are left out before Dynamo is imported: torch would import it
            to name their lines.

    Returns:
        The entries, oldest first; those of collectives that have ended say `retired`. Empty where this torch does not
        record. The recorder may leave out what has ended, but never does so for gloo.
    """
    stacks = stacks and "torch._dynamo" in sys.modules
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    dumps = [find("torch._C._distributed_c10d._dump_fr_trace")]
    # NCCL's groups have a recorder of their own, which only builds with CUDA know
    dumps.append(getattr(require("torch._C._distributed_c10d"), "_dump_nccl_trace", None))
    for dump in dumps:
        for entry in [] if dump is None else pickle.loads(dump(True, stacks)).get("entries", []):
            key = tuple(entry.get(part) for part in ("time_created_ns", "pg_id", "profiling_name"))
            found.setdefault(key, entry)
    return sorted(found.values(), key=lambda entry: entry.get("time_created_ns", 0))


def replace_process_group(kind: type) -> None:
    """Make c10d build its process groups from this subclass of ProcessGroup."""
    # this builds them, from the class that the next name has
    require("torch.distributed.distributed_c10d._new_process_group_helper")
    replaced("torch.distributed.distributed_c10d.ProcessGroup", kind).start()


def replace_backend(name: str, create: Callable[..., Any]) -> None:
    """Make c10d create a registered third-party backend with another function.

    Args:
        name: of the backend.
        create: the function.
    """
    plugins = require("torch.distributed.Backend._plugins")
    plugins[name.upper()] = plugins[name.upper()]._replace(creator_fn=create)

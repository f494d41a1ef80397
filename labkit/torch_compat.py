"""The only file that touches a private or version-dependent torch name.

Everything here works on torch 2.11 to 2.15; a name that the installed torch lacks raises `UnsupportedTorch`,
which says the name, the installed version and the supported range.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import os
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

SUPPORTED = ("2.11", "2.15")
# imported once by the process that ranks are forked from: the first compile in a rank then needs no import
COMPILER = os.path.join("torch", "_dynamo", "convert_frame.py")  # on the stack while Dynamo compiles
# fmt: off
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor")
# fmt: on


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


def flight_record(stacks: bool = True) -> list[dict[str, Any]]:
    """The collectives that torch's flight recorder holds, oldest first; those that have ended say `retired`.

    Empty where this torch does not record. It can leave out what has ended, but never does so for gloo.
    """
    dump = getattr(require("torch._C._distributed_c10d"), "_dump_fr_trace", None)
    return [] if dump is None else pickle.loads(dump(True, stacks)).get("entries", [])


def is_fake(tensor: Any) -> bool:
    """Whether a tensor only stands for another while a program is traced."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def replace_process_group(kind: type) -> None:
    """Make c10d build its groups of this subclass of ProcessGroup."""
    c10d = require("torch.distributed.distributed_c10d")
    if not isinstance(getattr(c10d, "ProcessGroup", None), type) or not hasattr(
        c10d, "_new_process_group_helper"
    ):
        raise UnsupportedTorch("this torch makes its process groups elsewhere, so they cannot be checked")
    c10d.ProcessGroup = kind


def replace_backend(name: str, create: Callable[..., Any]) -> None:
    """Make c10d create a registered third-party backend by another function."""
    plugins = require("torch.distributed").Backend._plugins
    plugins[name.upper()] = plugins[name.upper()]._replace(creator_fn=create)


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


def on_region_entry(seen: Callable[[types.CodeType], None]) -> Callable[[], None]:
    """Call `seen(code)` where compiled code begins, before its graph runs; returns what ends that again."""
    utils, name = require("torch._dynamo.utils"), "record_pregraph_bytecode_enter"
    original = require(f"torch._dynamo.utils.{name}")

    def enter() -> Any:
        seen(sys._getframe(1).f_code)
        return original()

    hide_from_dynamo(enter.__code__, seen.__code__)
    setattr(utils, name, enter)
    return lambda: setattr(utils, name, original)


def current_compile_id() -> str:
    """The id of the compile that this thread is in, as the structured trace writes it; '' outside of one."""
    compile_id = require("torch._guards").CompileContext.current_compile_id()
    return "" if compile_id is None else str(compile_id)


def bytecode_hook(hook: Callable[[types.CodeType, types.CodeType], Any]) -> Callable[[], None]:
    """Have Dynamo show every bytecode it reads and the one it makes of it; returns what ends that again.

    What the hook returns would replace Dynamo's bytecode, unless it is None.
    """
    return require("torch._dynamo.convert_frame").register_bytecode_hook(hook).remove


def uncompiled(fn: Any) -> Any:
    """The function or module that torch.compile was given; `fn` itself where it was not."""
    inner = getattr(fn, "_orig_mod", None) or getattr(fn, "_torchdynamo_orig_callable", None)
    return fn if inner is None else inner


def no_compile_caches() -> Any:
    """A context in which nothing is taken from, or put into, the caches of Inductor and AOTAutograd."""
    warnings.filterwarnings("ignore", "dynamo_pgo force disabled")  # said once, of what was asked for
    return require("torch._inductor.config").patch(force_disable_caches=True)


# --- a process group in Python ---


def profiling_flag() -> Callable[[], bool]:
    """A function that says in 60 ns whether a profiler listens on the calling thread."""
    return require("torch.autograd._profiler_enabled")


def fast_range(name: str) -> Any:
    """A context that the profiler shows as a range, at a tenth of what `record_function` costs."""
    return require("torch._C._profiler")._RecordFunctionFast(name)


def hide_from_dynamo(*codes: types.CodeType) -> None:
    """Make Dynamo run these code objects as they are, instead of trying to compile them; does not import Dynamo."""
    frames = require("torch._C._dynamo.eval_frame")
    try:
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        for code in codes:
            frames.set_code_exec_strategy(code, skip)
    except AttributeError:
        raise UnsupportedTorch("this torch's Dynamo has no set_code_exec_strategy, which shm needs") from None


def local_gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A gloo backend among ranks of one machine that connects two ranks when they first talk, not all at the start."""
    gloo = require("torch.distributed").ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=True)]
    return gloo(store, rank, size, options)


# --- looking at what the compiler made, and at what it is set to ---


def aot_backend(
    forward: list[Any], backward: list[Any], min_cut: bool = False, inputs_in_graph: bool = True
) -> Callable[..., Any]:
    """A compile backend that appends the graphs of AOTAutograd to two lists and runs them as they are.

    min_cut: choose what to save for the backward pass as Inductor does, instead of saving everything.
    inputs_in_graph: write changed inputs back inside the graph, as Inductor has it.
    """
    boxed = require("functorch.compile").make_boxed_func

    def keep(graphs: list[Any]) -> Callable[..., Any]:
        def compiler(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return boxed(graph.forward)

        return compiler

    aot_autograd = require("torch._dynamo.backends.common").aot_autograd
    return aot_autograd(
        fw_compiler=keep(forward),
        bw_compiler=keep(backward),
        inference_compiler=keep(forward),
        keep_inference_input_mutations=inputs_in_graph,
        **(
            {"partition_fn": require("functorch.compile").min_cut_rematerialization_partition}
            if min_cut
            else {}
        ),
    )


def renamed(owner: Any, new: str, old: str) -> Any:
    """A function that newer torch calls by another name, and warns at each call by the old one."""
    return getattr(owner, new, None) or getattr(owner, old)


def functional_op(name: str) -> Any:
    """The bare operator behind a functional collective, without its wrapper: `all_reduce`, `wait_tensor`."""
    return getattr(require("torch.ops")._c10d_functional, name)


def has_kernel(operator: str, key: str) -> bool:
    """Whether the dispatcher has a kernel of `operator` ('namespace::name') for a dispatch key such as 'Meta'."""
    return bool(require("torch._C")._dispatch_has_kernel_for_dispatch_key(operator, key))


def world_name() -> str:
    """The name by which a bare functional operator knows the default process group."""
    return require("torch.distributed.distributed_c10d")._get_default_group().group_name


def stream_operators() -> dict[str, str]:
    """The stream operators that graphs may hold, with their schemas (torch/_dynamo/variables/streams.py)."""
    require("torch._dynamo.variables.streams")
    schemas = require("torch._C")._jit_get_all_schemas()
    return {s.name.partition("::")[2]: str(s) for s in schemas if s.name.startswith("streams::")}


def default_store() -> Any:
    """The store that the default process group was made with."""
    return require("torch.distributed.distributed_c10d")._get_default_store()


def setting(dotted: str) -> Any:
    """The value of a compiler's setting: `setting("inductor.config.reorder_for_compute_comm_overlap")`."""
    part, _, name = dotted.rpartition(".")
    return getattr(require(f"torch._{part}"), name)


def compiled_autograd(compiler: Callable[..., Any]) -> Any:
    """A context in which backward passes are captured whole and handed to `compiler` (compiled autograd)."""
    return require("torch._dynamo.compiled_autograd")._enable(compiler)


@contextlib.contextmanager
def ddp_mode(mode: str) -> Iterator[None]:
    """A context in which DDP is built and compiled by this `optimize_ddp`, and after which nothing of it is left.

    Where DDP uses its Python reducer it leaves two things behind: an Inductor setting, and its own module among those
    that Dynamo looks into, which changes how every later DDP model compiles (torch/nn/parallel/distributed.py).
    """
    rules = require("torch._dynamo.trace_rules")
    kept = set(rules.LEGACY_MOD_INLINELIST)
    try:
        with (
            patched("dynamo.config", optimize_ddp=mode),
            patched("inductor.config", _fuse_ddp_communication=False, _fuse_ddp_bucket_size=25),
        ):
            yield
    finally:
        rules.LEGACY_MOD_INLINELIST.intersection_update(kept)
        rules.get_legacy_mod_inlinelist.cache_clear()


def cuda_sanitizer() -> Any:
    """A fresh engine of torch's CUDA sanitizer: vector clocks of streams, fed by hand, so that it needs no GPU."""
    return require("torch.cuda._sanitizer").EventHandler()


def cuda_sleep(cycles: int) -> None:
    """A kernel on the current CUDA stream that does nothing for so many clock cycles (torch.cuda._sleep)."""
    require("torch.cuda")._sleep(cycles)


def on_operator(seen: Callable[[str], None]) -> Any:
    """A context in which `seen` is told the name of every operator that this thread dispatches, before it runs."""
    base = require("torch.utils._python_dispatch").TorchDispatchMode

    class Seen(base):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen(str(func))
            return func(*args, **(kwargs or {}))

    return Seen()


def stream_names() -> dict[int, int]:
    """The streams that graphs of this process call by an index, by that index: their ids, 0 for the ambient one."""
    import torch

    known = require("torch._dynamo.graph_bytecode_inputs").index_to_external_object_weakref
    found = {}
    for index, reference in known.items():
        behind = reference()
        if behind is None or isinstance(
            behind, torch.Stream
        ):  # what is gone was made on the way: the ambient one
            found[index] = 0 if behind is None else int(behind.stream_id)
    return found


def control_deps() -> Any:
    """The operator that ties a stream operator to what it must stay behind (Inductor's control_dependencies)."""
    return require("torch._inductor.fx_passes.control_dependencies").control_deps


def pretend_streams() -> Callable[[int], Any]:
    """Make this process believe in an accelerator with streams, and return a function that makes such streams.

    Only what asks the hardware is replaced (is there one, how fast is it, which device is this, and what an event
    does when it runs); Dynamo and AOTAutograd make their real stream graphs. The process is good for nothing else
    afterwards: use it in a rank that is thrown away.
    """
    import torch

    operators = require("torch._dynamo.variables.streams")
    backward = require("torch._functorch._aot_autograd.streams")
    roofline = require("torch.utils._runtime_estimation")

    def stream(number: int) -> Any:
        return torch.Stream(stream_id=number, device_index=0, device_type=1)  # type: ignore[call-overload]

    class Idle:
        """Stands for a stream or an event when the graph runs: it has every method, and none does anything."""

        def __init__(self, index: int) -> None:
            self.index = index

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: None

    default = stream(0)
    replaced: list[tuple[Any, str, Any]] = [
        (torch.accelerator, "is_available", lambda: True),
        (torch.accelerator, "current_stream", lambda device=None, /: default),
        (torch.accelerator, "set_stream", lambda stream: None),
        (roofline, "get_gpu_dram_gbps", lambda: 3350),
        (roofline, "get_device_tflops", lambda dtype: 400),
        (backward, "get_device", lambda node: torch.device("cuda", 0)),
        (operators, "_get_event_by_index", Idle),
        (operators, "_get_stream_by_index", Idle),
    ]
    for owner, name, stand_in in replaced:
        if not hasattr(owner, name):
            raise UnsupportedTorch(
                f"this torch has no {owner.__name__}.{name}, which pretended streams replace"
            )
        setattr(owner, name, stand_in)
    return stream


def pretend_h100() -> None:
    """Make Inductor write CUDA code in this process as for an H100 that is not there; behind `pretend_streams`.

    Raises UnsupportedTorch without the triton package, which writing such code takes.
    """
    try:
        importlib.import_module("triton")
    except ImportError:
        raise UnsupportedTorch(
            "Inductor writes code for CUDA only with the package triton installed"
        ) from None
    import torch

    names = (
        "multi_processor_count warp_size max_threads_per_multi_processor regs_per_multiprocessor total_memory"
    )
    numbers = dict(zip(names.split(), (132, 32, 2048, 65536, 80 << 30), strict=True))
    numbers |= {"major": 9, "minor": 0, "cc": 90, "index": 0, "L2_cache_size": 50 << 20}
    numbers |= {"max_threads_per_block": 1024}
    numbers |= {"shared_memory_per_block_optin": 232448, "shared_memory_per_multiprocessor": 233472}
    properties = types.SimpleNamespace(name="NVIDIA H100", type="cuda", gcnArchName="", **numbers)
    cuda = require("torch._dynamo.device_interface").CudaInterface
    for owner in (cuda.Worker, cuda):
        owner.current_device = staticmethod(lambda: 0)
        owner.get_device_properties = staticmethod(lambda device=None: properties)
    cuda.is_available = cuda.is_triton_capable = staticmethod(lambda device=None: True)
    cuda.get_compute_capability = staticmethod(lambda device=None: 90)
    cuda.raise_if_triton_unavailable = staticmethod(lambda device=None: None)
    replaced = torch.cuda  # the public functions ask the driver
    replaced.current_device = lambda: 0
    replaced.get_device_properties = lambda device=None: properties  # type: ignore[assignment, return-value]
    replaced.get_device_capability = lambda device=None: (9, 0)
    for name in ("joint_graph", "post_grad"):  # these trace their patterns on the device
        require(f"torch._inductor.fx_passes.{name}").lazy_init = lambda *arguments, **named: None
    require("torch.utils._triton").triton_hash_with_backend = lambda: "no gpu"


@contextlib.contextmanager
def only_written() -> Iterator[list[str]]:
    """A context in which Inductor stops when it has written its code, with an error; the list has the texts."""
    lowering = require("torch._inductor.graph").GraphLowering
    kept, written = lowering.__dict__["save_output_code"], []

    def keep(source: str) -> None:
        written.append(source)
        raise RuntimeError("written, and not to be compiled")

    lowering.save_output_code = staticmethod(keep)
    try:
        yield written
    finally:
        lowering.save_output_code = kept


# --- ranks that compile together ---


@contextlib.contextmanager
def compiling_together(guards: bool = False, compiler: bool = False) -> Iterator[None]:
    """Ranks tell each other about guards (`set_enable_guard_collectives`) or traces (`enable_compiler_collectives`)."""
    import torch

    if not hasattr(torch.compiler, "set_enable_guard_collectives"):
        raise UnsupportedTorch("this torch has no torch.compiler.set_enable_guard_collectives")
    before = torch.compiler.set_enable_guard_collectives(guards)
    try:
        with require("torch._dynamo.config").patch(enable_compiler_collectives=compiler):
            yield
    finally:
        torch.compiler.set_enable_guard_collectives(bool(before))


@contextlib.contextmanager
def compiler_collectives_on_cpu() -> Iterator[None]:
    """Lets compiler collectives run between CPU ranks, which torch 2.13 does not: call it on all ranks at once.

    It gathers over a group that must know exactly one type of device (gloo's own names two), and enters that device's
    `device` context with an index modulo the number of accelerators (torch/_dynamo/output_graph.py,
    run_compiler_collective). So the group is made for the CPU alone, the context does nothing, and the number is one.
    """
    import torch

    where = require("torch._dynamo.distributed")
    interface = require("torch._dynamo.device_interface").CpuInterface
    if not hasattr(where, "_COMPILE_PG"):
        raise UnsupportedTorch("this torch keeps the group of its compiler collectives elsewhere")
    kept = where._COMPILE_PG, interface.__dict__.get("device"), torch.accelerator.device_count
    where._COMPILE_PG = torch.distributed.new_group(backend="cpu:gloo")
    interface.device = lambda index=None: contextlib.nullcontext()
    torch.accelerator.device_count = lambda: 1  # type: ignore[assignment]
    try:
        yield
    finally:
        where._COMPILE_PG, torch.accelerator.device_count = kept[0], kept[2]
        if kept[1] is None:
            del interface.device
        else:
            interface.device = kept[1]


# --- what is static and what is dynamic ---


def mark(tensor: Any, axis: int, how: str) -> None:
    """Say of a size that it varies: 'mark_dynamic' or 'mark_unbacked' (torch/_dynamo/decorators.py)."""
    require(f"torch._dynamo.{how}" if how == "mark_dynamic" else f"torch._dynamo.decorators.{how}")(
        tensor, axis
    )


def compile_backend(name: str) -> Callable[..., Any]:
    """The function behind a backend's name. Raises UnsupportedTorch for a name that this torch does not know."""
    try:
        return require("torch._dynamo.backends.registry").lookup_backend(name)
    except Exception as error:
        raise UnsupportedTorch(f"torch.compile has no backend {name!r} here: {error}") from None


@contextlib.contextmanager
def quiet_dynamo() -> Iterator[None]:
    """Without Dynamo's warnings: for who counts what they warn of."""
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def symbolic(graph: Any) -> bool:
    """Whether a graph of Dynamo's holds for more than the values it was traced with: an input has, or is, a symbol."""
    import torch

    symbols = (torch.SymInt, torch.SymFloat)
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("example_value")
        if isinstance(value, symbols):
            return True
        if isinstance(value, torch.Tensor) and any(
            isinstance(size, symbols) for size in (*value.shape, *value.stride())
        ):
            return True
        # a Python number that varies becomes an input, a tensor of one element
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False):
            return True
    return False


# --- streams inside the compiler ---

# what the slides on streams call things, and where they live: (the slides' name, what it is, dotted names to try)
SHORT = {
    "V": "torch._dynamo.variables.streams",
    "I": "torch._dynamo.graph_bytecode_inputs",
    "O": "torch._dynamo.output_graph",
    "B": "torch._functorch._aot_autograd.streams",
    "A": "torch._functorch._activation_offloading.activation_offloading",
    "N": "torch._inductor",
}
STREAM_NAMES = (
    ("user_obj_table", "the table of stream objects", "I.index_to_external_object_weakref"),
    ("get_user_obj_by_index", "the graph's look-up", "I.get_user_object_by_index I.get_external_object_by_index"),
    ("stream stack", "which stream Dynamo is in", "V.SymbolicStreamState"),
    ("torch.ops.streams.record_event", "operator", "V.record_event"),
    ("torch.ops.streams.wait_event", "operator", "V.wait_event"),
    ("torch.ops.streams.wait_stream", "operator", "V.wait_stream"),
    ("set_current_stream", "node that switches streams", "V.set_current_stream"),
    ("HOP with deps", "keeps passes from reordering", "N.fx_passes.control_dependencies.control_deps"),
    ("backward rules 1 and 2", "which stream a gradient is summed on", "B.assign_backward_streams"),
    ("backward rules 3 and 4", "events between streams", "B.insert_backward_syncs"),
    ("handling user deallocations", "sync_dealloc", "B.sync_deallocations"),
    ("detection of a late copy_", "raises an error", "O.OutputGraph.check_event_record_after_input_mutation"),
    ("no fusion across streams", "streams of its nodes", "N.scheduler.Scheduler._populate_stream_assignments"),
    ("with stream1: in the code", "wrapper line", "N.codegen.wrapper.EnterCudaStreamContextLine"),
    ("activation offloading, forward", "pass", "A.offload_activation_fw_async"),
    ("activation offloading, backward", "pass", "A.reload_activation_bw_async"),
)  # fmt: skip


def stream_table() -> list[tuple[str, str, str]]:
    """(the slides' name, what it is, the dotted name in the installed torch or '' where it has none)."""
    found = []
    for slide, what, candidates in STREAM_NAMES:
        there = ""
        for dotted in candidates.split():
            part, _, rest = dotted.partition(".")
            dotted = f"{SHORT[part]}.{rest}"
            owner, _, name = dotted.rpartition(".")
            try:
                if hasattr(require(owner), name):
                    there = there or dotted
            except UnsupportedTorch:
                continue
        found.append((slide, what, there))
    return found


def has_stream_graphs() -> bool:
    """Whether this torch compiles streams into its graphs (beta since torch 2.12)."""
    return all(there for slide, _, there in stream_table() if slide.startswith(("torch.ops", "user_obj")))


def external_objects() -> dict[int, Any]:
    """The objects that graphs of this process fetch by an index: streams and events."""
    known = require("torch._dynamo.graph_bytecode_inputs").index_to_external_object_weakref
    return {index: reference() for index, reference in known.items()}


def cache_counters() -> dict[str, int]:
    """Hits, misses and bypasses of the caches of Inductor and AOTAutograd, since Dynamo was reset last."""
    counters = require("torch._dynamo.utils").counters
    parts = {**counters["inductor"], **counters["aot_autograd"]}
    return {name: count for name, count in parts.items() if "cache" in name}


def patched(dotted: str, **values: Any) -> Any:
    """A context with other settings of a compiler's config: `patched("inductor.config", max_autotune=True)`."""
    return require(f"torch._{dotted}").patch(**values) if values else contextlib.nullcontext()


def no_mutation_check() -> None:
    """Take Dynamo's error about events behind a changed input away: to see what it protects from."""
    graph = require("torch._dynamo.output_graph").OutputGraph
    if not hasattr(graph, "check_event_record_after_input_mutation"):
        raise UnsupportedTorch("this torch does not check events behind a changed input")
    graph.check_event_record_after_input_mutation = lambda self, stream_index: None


def offload_settings(chosen: Callable[[Any], bool], milliseconds: float, **values: Any) -> Any:
    """A context in which AOTAutograd offloads the saved tensors for which `chosen(node)` is true.

    milliseconds: what a product is taken to last where the prefetch pass would measure it on a GPU.
    """
    passes = require("torch._functorch._activation_offloading.activation_offloading")
    passes.benchmark_node = lambda node: milliseconds

    def mark(joint: Any, *rest: Any, **more: Any) -> Any:
        for node in joint.graph.nodes:
            if chosen(node):
                node.meta["should_offload"] = True
        return joint

    return patched("functorch.config", enable_activation_offloading=True, joint_custom_pass=mark, **values)


def fake_tensors() -> Any:
    """A context in which tensors have shapes and no memory."""
    return require("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def stated_hardware(gbytes: float = 50.0, tflops: float = 0.05) -> Any:
    """A context in which the compiler takes these rates for the machine's, where it would ask a GPU."""
    roofline = require("torch.utils._runtime_estimation")
    kept = roofline.get_gpu_dram_gbps, roofline.get_device_tflops
    roofline.get_gpu_dram_gbps, roofline.get_device_tflops = lambda: gbytes, lambda dtype: tflops
    try:
        yield
    finally:
        roofline.get_gpu_dram_gbps, roofline.get_device_tflops = kept


def inductor_code(texts: list[str], execute: bool = False) -> Callable[..., Any]:
    """A compile backend that appends the code that Inductor writes for each graph, forward first, to `texts`.

    It runs the graph as it was before Inductor's passes, or with `execute` what Inductor made of it.
    """
    boxed = require("functorch.compile").make_boxed_func
    inner = require("torch._inductor.compile_fx").compile_fx_inner
    tool = require("torch._inductor.graph").GraphLowering

    def keep(graph: Any, inputs: Any, backward: bool) -> Any:
        if not execute:
            with only_written() as written, contextlib.suppress(Exception):
                inner(copy.deepcopy(graph), inputs, is_backward=backward)
            texts.extend(written)
            return boxed(graph.forward)
        kept, tool.save_output_code = tool.__dict__["save_output_code"], staticmethod(texts.append)
        try:
            return inner(graph, inputs, is_backward=backward)
        finally:
            tool.save_output_code = kept

    table = require("torch._inductor.decomposition").select_decomp_table()
    compilers = {f"{way}_compiler": functools.partial(keep, backward=way == "bw") for way in ("fw", "bw")}
    return require("torch._dynamo.backends.common").aot_autograd(**compilers, decompositions=table)

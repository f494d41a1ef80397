"""Stand-ins for hardware that is not there: an accelerator with streams, an H100 to write code for, stated rates."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

from labkit.torch_compat.versions import Feature, UnsupportedTorch, require

# since torch 2.15 the second, which is asked of a device
MEMORY = (
    "torch.utils._runtime_estimation.get_gpu_dram_gbps torch.utils._runtime_estimation.get_device_dram_gbps"
)

FEATURES = (
    Feature(
        "pretended streams",
        (
            "torch._dynamo.variables.streams._get_event_by_index",
            "torch._dynamo.variables.streams._get_stream_by_index",
            "torch._functorch._aot_autograd.streams.get_device",
            "torch.accelerator.is_available",
            "torch.accelerator.current_stream",
            "torch.accelerator.set_stream",
            "torch._dynamo.utils.get_current_stream",
            "torch._dynamo.guards.get_current_stream",
            MEMORY,
            "torch.utils._runtime_estimation.get_device_tflops",
        ),
        "stream graphs of your own without a GPU, in lesson 07",
    ),
    Feature(
        "code for an H100 that is not there",
        (
            "torch._dynamo.device_interface.CudaInterface.Worker",
            "torch._inductor.fx_passes.joint_graph.lazy_init",
            "torch._inductor.fx_passes.post_grad.lazy_init",
            "torch.utils._triton.triton_hash_with_backend",
            MEMORY,
        ),
        "code for CUDA of your own without a GPU, in lesson 07; it goes with pretended streams",
    ),
    Feature(
        "stated rates of the machine",
        (
            MEMORY,
            "torch._inductor.fx_passes.overlap_scheduling",
            "torch.utils._runtime_estimation.get_device_tflops",
        ),
        "the passes of lesson 14",
    ),
)


def pretend_streams() -> Callable[[int], Any]:
    """Make this process believe that there is an accelerator with streams.

    Only what asks the hardware is replaced (is there one, how fast is it, which device is this, and what an event
    does when it runs); Dynamo and AOTAutograd make their real stream graphs. The process is good for nothing else
    afterwards: use it in a rank that is thrown away.

    Returns:
        A function that makes such a stream, by its number.
    """
    import torch

    operators = require("torch._dynamo.variables.streams")
    backward = require("torch._functorch._aot_autograd.streams")

    class Stream(torch.Stream):
        """Dynamo asks the stream itself for the event of `record_event()`, and a driver would have to record it."""

        def record_event(self, event: Any = None) -> Any:
            return event or torch.Event()

    def stream(number: int) -> Any:
        return Stream(stream_id=number, device_index=0, device_type=1)  # type: ignore[call-overload]

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
        *_rates(3350, 400),
        (backward, "get_device", lambda node: torch.device("cuda", 0)),
        (operators, "_get_event_by_index", Idle),
        (operators, "_get_stream_by_index", Idle),
    ]
    for module in (require("torch._dynamo.utils"), require("torch._dynamo.guards")):
        # from torch 2.15 on it is C++ that asks the driver; before, Python that calls torch.accelerator
        if isinstance(getattr(module, "get_current_stream", None), types.BuiltinFunctionType):
            replaced.append((module, "get_current_stream", lambda device: default))
    for owner, name, stand_in in replaced:
        if not hasattr(owner, name):
            raise UnsupportedTorch(
                f"this torch has no {owner.__name__}.{name}, which pretended streams replace"
            )
        setattr(owner, name, stand_in)
    return stream


def pretend_h100() -> None:
    """Make Inductor write CUDA code in this process as for an H100 that is not there. Call `pretend_streams` before.

    Raises:
        UnsupportedTorch: the triton package, which writing such code takes, is not installed.
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


def _rates(gbytes: float, tflops: float) -> list[tuple[Any, str, Any]]:
    """Who asks the hardware for its rates, by which name, and what answers instead."""
    roofline = require("torch.utils._runtime_estimation")
    memory = next(
        (n for n in (dotted.rpartition(".")[2] for dotted in MEMORY.split()) if hasattr(roofline, n)), ""
    )
    if not memory or not hasattr(roofline, "get_device_tflops"):
        raise UnsupportedTorch("this torch asks for the rates of memory and arithmetic by other names")
    return [
        (roofline, memory, lambda device=None: gbytes),
        (roofline, "get_device_tflops", lambda dtype, device=None: tflops),
    ]


@contextlib.contextmanager
def stated_hardware(gbytes: float = 50.0, tflops: float = 0.05) -> Any:
    """Give a context in which the compiler takes these rates for those of the machine, and asks no GPU.

    Args:
        gbytes: of a link, in GB/s.
        tflops: of products, in Tflop/s.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, answer in _rates(gbytes, tflops):
            stack.enter_context(mock.patch.object(owner, name, answer))
        scheduling = require("torch._inductor.fx_passes.overlap_scheduling")
        if hasattr(scheduling, "estimate_runtime_analytical"):
            # torch 2.11 writes an estimate into its log beside the one it uses, and asks CUDA for it
            stack.enter_context(
                mock.patch.object(scheduling, "estimate_runtime_analytical", lambda node: 0.0)
            )
        yield

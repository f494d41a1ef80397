"""Stand-ins for hardware that is not there: an accelerator with streams, an H100 to write code for, stated rates."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

from oddrank.torch_names import UnsupportedTorch, replaced, require


def pretend_streams() -> Callable[[int], Any]:
    """Make this process believe that there is an accelerator with streams; returns what makes one, by its number.

    Only what asks the hardware is replaced (is there one, how fast is it, which device is this, and what an event
    does when it runs); Dynamo and AOTAutograd make their real stream graphs. The process is good for nothing else
    afterwards: use it in a rank that is thrown away.
    """
    import torch

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
    pretended = [
        replaced("torch.accelerator.is_available", lambda: True),
        replaced("torch.accelerator.current_stream", lambda device=None, /: default),
        replaced("torch.accelerator.set_stream", lambda stream: None),
        _rates(3350, 400),
        replaced("torch._functorch._aot_autograd.streams.get_device", lambda node: torch.device("cuda", 0)),
        replaced("torch._dynamo.variables.streams._get_event_by_index", Idle),
        replaced("torch._dynamo.variables.streams._get_stream_by_index", Idle),
    ]
    # from torch 2.15 on it is C++ that asks the driver; before, Python that calls torch.accelerator
    if isinstance(require("torch._dynamo.utils.get_current_stream"), types.BuiltinFunctionType):
        pretended += [
            replaced("torch._dynamo.utils.get_current_stream", lambda device: default),
            replaced("torch._dynamo.guards.get_current_stream", lambda device: default),
        ]
    for one in pretended:
        one.start()
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
    cuda = require("torch._dynamo.device_interface.CudaInterface")
    for owner in (require("torch._dynamo.device_interface.CudaInterface.Worker"), cuda):
        owner.current_device = staticmethod(lambda: 0)
        owner.get_device_properties = staticmethod(lambda device=None: properties)
    cuda.is_available = cuda.is_triton_capable = staticmethod(lambda device=None: True)
    cuda.get_compute_capability = staticmethod(lambda device=None: 90)
    cuda.raise_if_triton_unavailable = staticmethod(lambda device=None: None)
    driver = torch.cuda  # the public functions ask the driver
    driver.current_device = lambda: 0
    driver.get_device_properties = lambda device=None: properties  # type: ignore[assignment, return-value]
    driver.get_device_capability = lambda device=None: (9, 0)
    # these trace their patterns on the device
    replaced("torch._inductor.fx_passes.joint_graph.lazy_init", lambda *arguments, **named: None).start()
    replaced("torch._inductor.fx_passes.post_grad.lazy_init", lambda *arguments, **named: None).start()
    replaced("torch.utils._triton.triton_hash_with_backend", lambda: "no gpu").start()


def _rates(gbytes: float, tflops: float) -> Any:
    """A context in which these answer what asks the hardware for its rates."""
    require("torch.utils._runtime_estimation.get_device_tflops")
    require(  # since torch 2.15 the second, which is asked of a device
        "torch.utils._runtime_estimation.get_gpu_dram_gbps",
        "torch.utils._runtime_estimation.get_device_dram_gbps",
    )
    return mock.patch.multiple(
        "torch.utils._runtime_estimation",
        create=True,
        get_gpu_dram_gbps=lambda: gbytes,
        get_device_dram_gbps=lambda device=None: gbytes,
        get_device_tflops=lambda dtype, device=None: tflops,
    )


@contextlib.contextmanager
def stated_hardware(gbytes: float = 50.0, tflops: float = 0.05) -> Any:
    """Give a context in which the compiler takes for the machine's these GB/s of a link and Tflop/s of products."""
    scheduling = require("torch._inductor.fx_passes.overlap_scheduling")
    # torch 2.11 writes an estimate into its log beside the one it uses, and asks CUDA for it
    logged = mock.patch.object(scheduling, "estimate_runtime_analytical", lambda node: 0.0, create=True)
    with _rates(gbytes, tflops), logged:
        yield

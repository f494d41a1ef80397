"""Streams in graphs: their operators and objects, offloading, and the race check."""

from __future__ import annotations

import contextlib
from typing import Any

from labkit.torch_compat.versions import Feature, UnsupportedTorch, require

FEATURES = (
    Feature(
        "streams in compiled graphs",
        (
            "torch._dynamo.variables.streams",
            "torch._dynamo.graph_bytecode_inputs.index_to_external_object_weakref",
            "torch._C._jit_get_all_schemas",
        ),
        "capturing stream graphs of your own in lesson 07; those of the lesson are shipped",
        since="2.12",
        source="beta since torch 2.12, as the slides on streams say; the 2.11.0 wheel has these names too",
    ),
    Feature(
        "operators tied to what they stay behind",
        ("torch._inductor.fx_passes.control_dependencies.control_deps",),
        "reading and running graphs in which stream operators are held in place",
    ),
    Feature(
        "the error about an event behind a changed input",
        ("torch._dynamo.output_graph.OutputGraph.check_event_record_after_input_mutation",),
        "what lesson 07 shows with and without that error",
        since="2.12",
    ),
    Feature(
        "activation offloading",
        (
            "torch._functorch._activation_offloading.activation_offloading.benchmark_node",
            "torch._functorch._activation_offloading.offload_ops",
        ),
        "offloading of your own graphs in lesson 07; those of the lesson are shipped",
        since="2.12",
        source="the 2.11.0 wheel offloads too, without the asynchronous passes and the setting of the link's rate",
    ),
    Feature(
        "the CUDA sanitizer's clocks",
        ("torch.cuda._sanitizer.EventHandler",),
        "torch's own verdict beside labkit's race check",
    ),
    Feature("a kernel that waits", ("torch.cuda._sleep",), "stream programs on a GPU"),
)


def has_stream_graphs() -> bool:
    """Whether this torch compiles streams into its graphs (beta since torch 2.12).

    torch 2.11.0 has the operators' names, numbers the streams otherwise and checks no event behind a changed input.
    """
    graph = require("torch._dynamo.output_graph").OutputGraph
    return hasattr(graph, "check_event_record_after_input_mutation")


def stream_operators() -> dict[str, str]:
    """The stream operators that graphs may hold, with their schemas (torch/_dynamo/variables/streams.py)."""
    require("torch._dynamo.variables.streams")
    schemas = require("torch._C")._jit_get_all_schemas()
    return {s.name.partition("::")[2]: str(s) for s in schemas if s.name.startswith("streams::")}


def stream_names() -> dict[int, int]:
    """The streams that graphs of this process call by an index, by that index: their ids, 0 for the ambient one."""
    import torch

    found = {}
    for index, behind in external_objects().items():
        if behind is None or isinstance(
            behind, torch.Stream
        ):  # what is gone was made on the way: the ambient one
            found[index] = 0 if behind is None else int(behind.stream_id)
    return found


def external_objects() -> dict[int, Any]:
    """The objects that graphs of this process fetch by an index: streams and events."""
    known = require("torch._dynamo.graph_bytecode_inputs").index_to_external_object_weakref
    pairs = known.items() if isinstance(known, dict) else enumerate(known)  # a list from torch 2.15 on
    return {index: reference() for index, reference in pairs}


def control_deps() -> Any:
    """The operator that ties a stream operator to what it must stay behind (Inductor's control_dependencies)."""
    return require("torch._inductor.fx_passes.control_dependencies").control_deps


def no_mutation_check() -> None:
    """Take Dynamo's error about events behind a changed input away: to see what it protects from."""
    graph = require("torch._dynamo.output_graph").OutputGraph
    if not hasattr(graph, "check_event_record_after_input_mutation"):
        raise UnsupportedTorch("this torch does not check events behind a changed input")
    graph.check_event_record_after_input_mutation = lambda self, stream_index: None


def state_product(milliseconds: float) -> None:
    """State how long a product takes, where the pass that prefetches offloaded tensors would measure it on a GPU."""
    passes = require("torch._functorch._activation_offloading.activation_offloading")
    passes.benchmark_node = lambda node: milliseconds


def pinned_pool() -> Any:
    """A context in which offloaded tensors use pinned host memory again, instead of getting new memory at each step."""
    ops = require("torch._functorch._activation_offloading.offload_ops")
    return getattr(ops, "pinned_memory_pool", contextlib.nullcontext)()


def cuda_sanitizer() -> Any:
    """A fresh engine of torch's CUDA sanitizer: vector clocks of streams, fed by hand, so that it needs no GPU."""
    return require("torch.cuda._sanitizer").EventHandler()


def cuda_sleep(cycles: int) -> None:
    """A kernel on the current CUDA stream that does nothing for so many clock cycles (torch.cuda._sleep)."""
    require("torch.cuda")._sleep(cycles)

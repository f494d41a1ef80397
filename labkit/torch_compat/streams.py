"""Streams in graphs: their operators and objects, offloading, and the race check."""

from __future__ import annotations

import contextlib
from typing import Any

from oddrank.torch_names import find, replaced, require


def has_stream_graphs() -> bool:
    """Say whether this torch compiles streams into its graphs, as it does in beta since torch 2.12.

    The slides on streams say so. torch 2.11.0 has the operators' names, numbers the streams otherwise and checks no
    event behind a changed input.
    """
    check = find(
        "torch._dynamo.output_graph.OutputGraph.check_event_record_after_input_mutation", since="2.12"
    )
    return check is not None


def stream_names() -> dict[int, int]:
    """Map the index by which graphs of this process name a stream to the id of the stream; 0 is the ambient one."""
    import torch

    known = require("torch._dynamo.graph_bytecode_inputs.index_to_external_object_weakref")
    pairs = known.items() if isinstance(known, dict) else enumerate(known)  # a list from torch 2.15 on
    found = {}
    for index, reference in pairs:  # to a stream or an event
        behind = reference()
        if behind is None:  # what is gone was made on the way: the ambient one
            found[index] = 0
        elif isinstance(behind, torch.Stream):
            found[index] = int(behind.stream_id)
    return found


def control_deps() -> Any:
    """Return the operator that keeps a stream operator after what it depends on (Inductor's control_dependencies)."""
    return require("torch._inductor.fx_passes.control_dependencies.control_deps")


def state_product(milliseconds: float) -> None:
    """State how long a product takes; the pass that prefetches offloaded tensors would measure it on a GPU."""
    # torch 2.11.0 offloads too, without the asynchronous passes and the setting of the link's rate
    replaced(
        "torch._functorch._activation_offloading.activation_offloading.benchmark_node",
        lambda node: milliseconds,
    ).start()


def pinned_pool() -> Any:
    """Give a context in which offloaded tensors reuse pinned host memory; else each step gets new memory."""
    return find(
        "torch._functorch._activation_offloading.offload_ops.pinned_memory_pool",
        contextlib.nullcontext,
        since="2.13",
    )()


def cuda_sanitizer() -> Any:
    """Make an engine of torch's CUDA sanitizer. It is fed by hand, so that it needs no GPU."""
    return require("torch.cuda._sanitizer.EventHandler")()

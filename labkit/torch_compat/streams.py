"""Streams in graphs: their operators and objects, what the slides call them, offloading, and the race check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.torch_compat.compiler import patched
from labkit.torch_compat.versions import Feature, UnsupportedTorch, require

FEATURES = (
    Feature(
        "streams in compiled graphs",
        (
            "torch._dynamo.variables.streams.record_event",
            "torch._dynamo.variables.streams.wait_event",
            "torch._dynamo.variables.streams.wait_stream",
            "torch._dynamo.graph_bytecode_inputs.index_to_external_object_weakref",
            "torch._dynamo.graph_bytecode_inputs.get_external_object_by_index"
            " torch._dynamo.graph_bytecode_inputs.get_user_object_by_index",
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
        "streams of a backward pass",
        (
            "torch._functorch._aot_autograd.streams.assign_backward_streams",
            "torch._functorch._aot_autograd.streams.insert_backward_syncs",
            "torch._functorch._aot_autograd.streams.sync_deallocations",
        ),
        "rows in lesson 07's table of names",
    ),
    Feature(
        "the error about an event behind a changed input",
        ("torch._dynamo.output_graph.OutputGraph.check_event_record_after_input_mutation",),
        "what lesson 07 shows with and without that error",
        since="2.12",
    ),
    Feature(
        "streams in Inductor's code",
        (
            "torch._inductor.scheduler.Scheduler._populate_stream_assignments",
            "torch._inductor.codegen.wrapper.EnterCudaStreamContextLine",
        ),
        "the code for CUDA with streams in it; that of the lesson is shipped",
        since="2.12",
    ),
    Feature(
        "activation offloading",
        (
            "torch._functorch.config.enable_activation_offloading",
            "torch._functorch.config.joint_custom_pass",
            "torch._functorch.config.activation_offload_cpu_gpu_bw",
            "torch._functorch._activation_offloading.activation_offloading.benchmark_node",
            "torch._functorch._activation_offloading.activation_offloading.offload_activation_fw_async",
            "torch._functorch._activation_offloading.activation_offloading.reload_activation_bw_async",
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
    """Whether this torch compiles streams into its graphs (beta since torch 2.12).

    torch 2.11.0 has the operators' names, numbers the streams otherwise and checks no event behind a changed input.
    """
    if not hasattr(
        require("torch._dynamo.output_graph").OutputGraph, "check_event_record_after_input_mutation"
    ):
        return False
    return all(there for slide, _, there in stream_table() if slide.startswith(("torch.ops", "user_obj")))


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


def offload_settings(chosen: Callable[[Any], bool], milliseconds: float, **values: Any) -> Any:
    """A context in which AOTAutograd offloads the saved tensors for which `chosen(node)` is true.

    milliseconds: what a product is taken to last where the prefetch pass would measure it on a GPU.
    values: other settings of AOTAutograd's, such as `activation_offload_cpu_gpu_bw`.
    """
    passes = require("torch._functorch._activation_offloading.activation_offloading")
    passes.benchmark_node = lambda node: milliseconds

    def mark(joint: Any, *rest: Any, **more: Any) -> Any:
        for node in joint.graph.nodes:
            if chosen(node):
                node.meta["should_offload"] = True
        return joint

    return patched("functorch.config", enable_activation_offloading=True, joint_custom_pass=mark, **values)


def cuda_sanitizer() -> Any:
    """A fresh engine of torch's CUDA sanitizer: vector clocks of streams, fed by hand, so that it needs no GPU."""
    return require("torch.cuda._sanitizer").EventHandler()


def cuda_sleep(cycles: int) -> None:
    """A kernel on the current CUDA stream that does nothing for so many clock cycles (torch.cuda._sleep)."""
    require("torch.cuda")._sleep(cycles)

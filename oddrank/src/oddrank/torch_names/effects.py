"""Where torch shows what switches of torch.compile, DDP and FSDP2 do: functions to wrap, and what to read from them."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from oddrank.torch_names.names import find, replaced

# a setting of torch._inductor.config -> its pass, as Inductor names it
PASSES = {
    "bucket_all_gathers_fx": "bucket_all_gathers",
    "bucket_reduce_scatters_fx": "bucket_reduce_scatters",
    "bucket_all_reduces_fx": "bucket_all_reduce",
    "aten_distributed_optimizations.enable_overlap_scheduling": "overlap_scheduling",
}
OPTIMIZE_DDP = "torch._dynamo.config.optimize_ddp"
_COLLECTIVE = ("_c10d_functional.", "symm_mem.", "bucketing.")
_RUNTIME = ("_dtensor.mesh_get_process_group", "_runtime_compute_coordinate_on_dim", "_get_flattened_submesh")
# what it shows, the function (None where this torch lacks it), and a context with another one in its place
Point = tuple[str, Any, Callable[[Any], Any]]


def inductor_points() -> list[Point]:
    """Return the functions of Inductor that show what its passes do, and that a graph is done."""
    find("torch._inductor.compile_fx.compile_fx")  # imports the rest
    return [
        (
            "graph_pass",
            find("torch.fx.passes.graph_transform_observer.GraphTransformObserver.apply_graph_pass"),
            lambda new: replaced(
                "torch.fx.passes.graph_transform_observer.GraphTransformObserver.apply_graph_pass", new
            ),
        ),
        (
            "graph_pass",
            find("torch.fx.passes.graph_transform_observer.GraphTransformObserver.apply_gm_pass"),
            lambda new: replaced(
                "torch.fx.passes.graph_transform_observer.GraphTransformObserver.apply_gm_pass", new
            ),
        ),
        (
            "post_compile",
            find("torch._inductor.output_code.CompiledFxGraph.post_compile"),
            lambda new: replaced("torch._inductor.output_code.CompiledFxGraph.post_compile", new),
        ),
    ]


def inductor_settings() -> dict[str, Any]:
    """Return the values of those settings of Inductor that are keys of `PASSES`; None where torch lacks one."""
    return {
        "bucket_all_gathers_fx": find("torch._inductor.config.bucket_all_gathers_fx"),
        "bucket_reduce_scatters_fx": find("torch._inductor.config.bucket_reduce_scatters_fx"),
        "bucket_all_reduces_fx": find("torch._inductor.config.bucket_all_reduces_fx"),
        "aten_distributed_optimizations.enable_overlap_scheduling": find(
            "torch._inductor.config.aten_distributed_optimizations.enable_overlap_scheduling"
        ),
    }


def ddp_optimizer_points() -> list[Point]:
    """Return the function in which DDPOptimizer cuts a graph."""
    name = find("torch._dynamo.backends.distributed.DDPOptimizer.compile_fn")
    return [
        (
            "split",
            name,
            lambda new: replaced("torch._dynamo.backends.distributed.DDPOptimizer.compile_fn", new),
        )
    ]


def ddp_forward_point() -> Point:
    """Return what DDP does before a module's forward: it broadcasts buffers."""
    return (
        "forward",
        find("torch.nn.parallel.DistributedDataParallel._pre_forward"),
        lambda new: replaced("torch.nn.parallel.DistributedDataParallel._pre_forward", new),
    )


def active_ddp() -> Any:
    """Return the DDP module whose forward runs; None outside of one."""
    return find("torch.nn.parallel.DistributedDataParallel._active_ddp_module")


def ddp_buckets(ddp: Any) -> int:
    """Return how many buckets a DDP module has; 0 before it made those that it stays with, in its second step."""
    return len(_bucket_sizes(ddp, "rebuilt_bucket_sizes"))


def ddp_bucket_bytes(ddp: Any) -> set[int]:
    """Return the sizes of a DDP module's buckets, those of its first step and those that it stays with.

    Not during a backward: DDP holds a lock then, and this call waits for it.
    """
    return {*_bucket_sizes(ddp, "bucket_sizes"), *_bucket_sizes(ddp, "rebuilt_bucket_sizes")}


def _bucket_sizes(ddp: Any, name: str) -> list[int]:
    sizes = ddp._get_ddp_logging_data().get(name) or ""
    return [int(size) for size in str(sizes).split(",") if size.strip()]


def ddp_was_called(ddp: Any) -> bool | None:
    """Say whether the forward of a DDP module ever ran; None where DDP does not note it, as with its Python reducer."""
    return None if getattr(ddp, "_use_python_reducer", True) else getattr(ddp, "_lazy_init_ran", None)


def ddp_parameters(ddp: Any) -> list[str]:
    """Return the names of a DDP module's parameters in the order of the indices in its errors; [] if that is not sure.

    Source: DistributedDataParallel._build_params_for_reducer.
    """
    seen: dict[int, str] = {}
    for inside, module in ddp.module.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            whole = f"{inside}.{name}"
            if parameter.requires_grad and whole not in ddp.parameters_to_ignore:
                seen.setdefault(id(parameter), whole.replace("_orig_mod.", "").lstrip("."))
    sure = len(seen) == ddp._get_ddp_logging_data().get("num_parameter_tensors")
    return list(seen.values()) if sure else []


def ddp_hooks(ddp: Any) -> list[Any]:
    """Return the hooks that move the gradients of a DDP module in the place of its all-reduce."""
    return list(getattr(ddp, "_comm_hooks", ()))


def ddp_optimizer_mode() -> Any:
    """Return the value of `optimize_ddp`."""
    return find("torch._dynamo.config.optimize_ddp")


def fsdp_points() -> list[Point]:
    """Return the functions of `fully_shard` that run before a forward, gather and prefetch; none before its import."""
    if "torch.distributed.fsdp._fully_shard._fsdp_param_group" not in sys.modules:
        return []
    return [
        (
            "pre_forward",
            find("torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.pre_forward"),
            lambda new: replaced(
                "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.pre_forward", new
            ),
        ),
        (
            "unshard",
            find("torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.unshard"),
            lambda new: replaced(
                "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.unshard", new
            ),
        ),
        (
            "prefetch",
            find("torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._prefetch_unshard"),
            lambda new: replaced(
                "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._prefetch_unshard",
                staticmethod(new),
            ),
        ),
    ]


def gathers(group: Any) -> bool:
    """Say whether a gather of one of FSDP2's groups of parameters is under way."""
    return group._all_gather_result is not None


def named_for_prefetch(state: Any, way: str) -> bool:
    """Say whether the program named modules that a sharded one prefetches, `way` being 'forward' or 'backward'."""
    return bool(getattr(state, f"_states_to_{way}_prefetch", None))


def is_sharded(module: Any) -> bool:
    """Say whether `fully_shard` was called on a module."""
    known = sys.modules.get("torch.distributed.fsdp")
    return known is not None and isinstance(module, known.FSDPModule)


def one_rank_switch() -> str:
    """Return the name of the switch `compile_on_one_rank` where it is on, '' where it is off or torch has none."""
    if _of_compiler():  # since torch 2.15 to read the other one warns
        new = find("torch.compiler.config.compile_on_one_rank", since="2.14")
        return "torch.compiler.config.compile_on_one_rank" if new else ""
    on = find("torch.distributed.config.compile_on_one_rank")
    return "torch.distributed.config.compile_on_one_rank" if on else ""


@functools.cache
def _of_compiler() -> bool:
    """Whether `torch.compiler` has the switch; asked once, because a name that is missing takes 15 us."""
    return find("torch.compiler.config.compile_on_one_rank", since="2.14") is not None


def runtime_lookups(graph: Any) -> int:
    """Count the operators of a graph that look up a coordinate or a group of a mesh at run time."""
    return sum(any(name in op for name in _RUNTIME) for _, op, _ in _operators(graph))


def _operators(graph: Any) -> Iterator[tuple[Any, str, list[Any]]]:
    """The calls of a graph with their operator and inputs; inside of `control_deps`, which overlap scheduling adds."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        name, inputs = str(node.target), list(node.all_input_nodes)
        if name.endswith("control_deps") and len(node.args) > 1:
            inner = getattr(graph.owning_module, str(node.args[1].target), None)
            held = [str(n.target) for n in getattr(inner, "graph", graph).nodes if n.op == "call_function"]
            name, inputs = (held or [name])[-1], [n for n in node.args[2:] if hasattr(n, "users")]
        yield node, name, inputs


def collectives_of(graph: Any) -> str:
    """Collectives of a graph by name, and how many other operators stand between them and their waits."""
    counts: Counter[str] = Counter()
    began: dict[Any, int] = {}
    between = others = 0
    for node, name, inputs in _operators(graph):
        if "getitem" in name:
            began.update((node, began[one]) for one in inputs if one in began)
        elif "wait_tensor" in name:
            between += max((others - began[one] for one in inputs if one in began), default=0)
        elif any(part in name for part in _COLLECTIVE):
            counts[name.partition(".")[2].partition(".")[0]] += 1
            began[node] = others
        else:
            others += 1
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{said}, {between} operators between calls and waits" if said else ""

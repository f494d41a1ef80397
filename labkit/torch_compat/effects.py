"""What switches of torch.compile, DDP and FSDP2 do: hooks in torch that report numbers before and after."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from labkit.torch_compat.compiler import hide_from_dynamo
from labkit.torch_compat.recording import current_compile_id
from labkit.torch_compat.versions import find

# a setting of torch._inductor.config -> its pass, as torch._inductor.fx_passes.post_grad names it
PASSES = {
    "bucket_all_gathers_fx": "bucket_all_gathers",
    "bucket_reduce_scatters_fx": "bucket_reduce_scatters",
    "bucket_all_reduces_fx": "bucket_all_reduce",
    "_fuse_ddp_communication": "fuse_ddp_communication",
    "aten_distributed_optimizations.enable_overlap_scheduling": "overlap_scheduling",
    "aten_distributed_optimizations.enable_low_contention_collectives": "replace_collectives_with_low_contention",
    "_micro_pipeline_tp": "micro_pipeline_tp_pass",
    "reorder_for_compute_comm_overlap": "reorder_compute_and_comm_for_overlap",
}
_SWITCHES = {name: switch for switch, name in PASSES.items()}
_COLLECTIVE = ("_c10d_functional.", "symm_mem.", "bucketing.")
_RUNTIME = ("_dtensor.mesh_get_process_group", "_runtime_compute_coordinate_on_dim", "_get_flattened_submesh")
Say = Callable[..., None]


class Effects:
    """Hooks in torch that report what switches do, until `close`.

    Args:
        say: Called with the switch, its value, the compile id, what was there before and after, and torch's own words.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._there: set[str] = set()
        self._undo = contextlib.ExitStack()
        self._ddp: dict[str, Callable[[], Any]] = {}

    def attach(self, inductor: bool) -> None:
        """Hook what is imported by now, and Inductor, which is imported for it, where it is the backend."""
        if inductor:
            find("torch._inductor.compile_fx.compile_fx")
            self._hook(
                "torch.fx.passes.graph_transform_observer.GraphTransformObserver",
                "apply_graph_pass",
                self._pass,
            )
            self._hook(
                "torch.fx.passes.graph_transform_observer.GraphTransformObserver", "apply_gm_pass", self._pass
            )
            self._hook("torch._inductor.fx_passes.post_grad", "micro_pipeline_tp_pass", self._async_tp)
            self._hook("torch._inductor.comms", "reorder_compute_and_comm_for_overlap", self._reorder)
            self._hook("torch._inductor.output_code.CompiledFxGraph", "post_compile", self._post_compile)
            self._listen("torch._inductor.cudagraph_utils.cudagraphs_log")
        self._hook("torch._dynamo.backends.distributed.DDPOptimizer", "compile_fn", self._split)
        if "torch.distributed.fsdp._fully_shard._fsdp_param_group" in sys.modules:
            group = "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup"
            self._hook(group, "pre_forward", self._pre_forward)
            self._hook(group, "unshard", self._unshard)
            self._hook(group, "_prefetch_unshard", self._prefetch, staticmethod)

    def ddp_buckets(self) -> dict[str, int]:
        """Return how many buckets DDP has by now for each compile that DDPOptimizer took part in.

        DDP begins with one bucket, and makes those it stays with (`rebuilt_bucket_sizes`) in the second step.
        """
        found = {}
        for compile_id, module in self._ddp.items():
            ddp = module()
            sizes = ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes") if ddp is not None else None
            if sizes:
                found[compile_id] = len(str(sizes).split(","))
        return found

    def close(self) -> None:
        """Leave torch as it was."""
        self._undo.close()

    def _hook(
        self, owner: str, name: str, around: Callable[..., Any], kind: Callable = lambda fn: fn
    ) -> None:
        held = find(owner)
        original = getattr(held, name, None)
        if f"{owner}.{name}" in self._there or original is None:
            return
        self._there.add(f"{owner}.{name}")

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        hide_from_dynamo(call.__code__)  # type: ignore[attr-defined]
        self._undo.enter_context(mock.patch.object(held, name, kind(call)))

    def _listen(self, name: str) -> None:
        logger = find(name)
        if name in self._there or logger is None:
            return
        self._there.add(name)
        handler = logging.Handler(logging.WARNING)
        said = lambda record: self._say("cudagraph_skip", note=record.getMessage())  # noqa: E731
        handler.emit = said  # type: ignore[method-assign]
        logger.addHandler(handler)
        self._undo.callback(logger.removeHandler, handler)

    # --- Inductor ---

    def _pass(self, original: Callable[..., Any], observer: Any, work: Any) -> Any:
        if observer.passname == "stable_sort":  # of every graph, before any pass over collectives is over
            many = sum(any(name in op for name in _RUNTIME) for _, op, _ in _operators(observer.gm.graph))
            self._say("runtime lookups", before=str(many))
        return self._compare(observer.passname, observer.gm.graph, lambda: original(observer, work))

    def _async_tp(self, original: Callable[..., Any], graph: Any) -> Any:
        why = "" if find("torch.distributed.is_nccl_available")() else "it needs NCCL, which this torch lacks"
        return self._compare("micro_pipeline_tp_pass", graph, lambda: original(graph), why)

    def _compare(self, name: str, graph: Any, run: Callable[[], Any], why: str = "") -> Any:
        if name not in _SWITCHES:
            return run()
        before = _summary(graph)
        found = run()
        self._say(_SWITCHES[name], before=before, after=_summary(graph), note=why)
        return found

    def _reorder(self, original: Callable[..., Any], nodes: Any) -> Any:
        names = [node.get_name() for node in nodes]
        found = original(nodes)
        moved = sum(a != b for a, b in zip(names, [node.get_name() for node in found], strict=False))
        self._say(
            "reorder_for_compute_comm_overlap", before=f"{len(names)} kernels", after=f"{moved} of them moved"
        )
        return found

    def _post_compile(self, original: Callable[..., Any], graph: Any, *args: Any) -> Any:
        for switch in PASSES:
            value = find(f"torch._inductor.config.{switch}")
            if value not in (None, False, "none"):
                self._say(switch, repr(value), note="on")
        options = args[-1]
        asked = bool(options["cudagraphs"]) or find("torch._inductor.config.triton.cudagraphs")
        found = original(graph, *args)
        if asked:
            info = getattr(graph, "cudagraph_info", None)
            reasons = [
                graph.disabled_cudagraphs_reason,
                *(getattr(info, "cudagraph_fail_reasons", None) or []),
            ]
            said = "; ".join(dict.fromkeys(filter(None, reasons)))
            on = "captured" if options["cudagraphs"] else "skipped"
            self._say("cudagraphs", "True", before=",".join(sorted(graph.device_types)), after=on, note=said)
        return found

    # --- DDP and FSDP2 ---

    def _split(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(optimizer, *args, **kwargs)
        ddp = find("torch.nn.parallel.DistributedDataParallel._active_ddp_module")
        if ddp is not None:
            self._ddp[current_compile_id()] = weakref.ref(ddp)
        self._say("DDPOptimizer", after=str(len(optimizer.buckets)))
        return found

    def _pre_forward(self, original: Callable[..., Any], group: Any, module: Any, *args: Any) -> Any:
        self._say("fsdp hook", module=module)
        return original(group, module, *args)

    def _unshard(self, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        before = group._all_gather_result
        found = original(group, *args, **kwargs)
        if before is None and group._all_gather_result is not None:
            self._say("fsdp gather")
        return found

    def _prefetch(self, original: Callable[..., Any], group: Any, which: str) -> Any:
        before, held = group._all_gather_result, group.is_unsharded
        found = original(group, which)
        began = before is None and group._all_gather_result is not None
        why = "its parameters were gathered already" if held else "its gather was under way already"
        caller = sys._getframe(2).f_locals.get("self")  # a state, where the program named the modules
        if getattr(caller, f"_states_to_{which}_prefetch", None):
            self._say(f"{which} prefetch", after="began" if began else "nothing", note="" if began else why)
        return found


def one_rank_switch() -> str:
    """Return the name of the switch `compile_on_one_rank` where it is on, '' where it is off or torch has none."""
    for module in ("torch.compiler.config", "torch.distributed.config"):  # its place from 2.14 on, and before
        if find(f"{module}.compile_on_one_rank"):
            return f"{module}.compile_on_one_rank"
    return ""


def ddp_optimizer_mode() -> Any:
    """Return the value of `torch._dynamo.config.optimize_ddp`."""
    return find("torch._dynamo.config.optimize_ddp")


def is_sharded(module: Any) -> bool:
    """Say whether `fully_shard` was called on a module."""
    known = sys.modules.get("torch.distributed.fsdp")
    return known is not None and isinstance(module, known.FSDPModule)


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


def _summary(graph: Any) -> str:
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

"""How torch passes gradients where a program leaves DTensor, and through collectives that Dynamo rewrites."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from oddrank.torch_names.effects import Point
from oddrank.torch_names.names import find, replaced, require

# what Dynamo puts in the place of an in-place collective -> what the program calls
_IN_PLACE = {
    "all_gather_inplace": "all_gather",
    "all_gather_tensor_inplace": "all_gather_into_tensor",
    "all_reduce_inplace": "all_reduce",
    "all_to_all_inplace": "all_to_all_single",
    "reduce_scatter_tensor_inplace": "reduce_scatter_tensor",
}


class Rewritten(NamedTuple):
    """An in-place collective of a program that has a gradient in a graph.

    Attributes:
        call: The function of `torch.distributed` that the program calls.
        stack: Where, as Python prints a stack, innermost frame last.
    """

    call: str
    stack: str


def to_local_points() -> list[Point]:
    """Return the two halves of `DTensor.to_local`, which `full_tensor` calls as well; none before the import."""
    if "torch.distributed.tensor" not in sys.modules:
        return []
    return [
        (
            "forward",
            find("torch.distributed.tensor._api._ToTorchTensor.forward"),
            lambda new: replaced("torch.distributed.tensor._api._ToTorchTensor.forward", staticmethod(new)),
        ),
        (
            "backward",
            find("torch.distributed.tensor._api._ToTorchTensor.backward"),
            lambda new: replaced("torch.distributed.tensor._api._ToTorchTensor.backward", staticmethod(new)),
        ),
    ]


def pipeline_scaling() -> tuple[Any, Callable[[Any], Any]] | None:
    """Return what divides the gradients of a pipeline's stage, and how to replace it; None before the import."""
    if "torch.distributed.pipelining.stage" not in sys.modules:
        return None
    return (
        require("torch.distributed.pipelining.stage._PipelineStageBase.scale_grads"),
        lambda new: replaced("torch.distributed.pipelining.stage._PipelineStageBase.scale_grads", new),
    )


def from_local_point() -> tuple[Any, Callable[[Any], Any]] | None:
    """Return the forward of `DTensor.from_local`, and how to replace it; None before the import."""
    if "torch.distributed.tensor" not in sys.modules:
        return None
    return (
        require("torch.distributed.tensor._api._FromTorchTensor.forward"),
        lambda new: replaced("torch.distributed.tensor._api._FromTorchTensor.forward", staticmethod(new)),
    )


def assumed_placements(ctx: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the mesh and the placements that `to_local` gives to the gradient of its output.

    Source: torch/distributed/tensor/_api.py. Without `grad_placements` they are those of the DTensor, a partial one
    taken for replicated.

    Args:
        ctx: What its backward gets.
    """
    spec, asked = getattr(ctx, "dtensor_spec", None), getattr(ctx, "grad_placements", None)
    if spec is None:
        return None
    replicate = find("torch.distributed.tensor.Replicate")
    usual = tuple(replicate() if p.is_partial() else p for p in spec.placements)
    return spec.mesh, tuple(asked) if asked is not None else usual


def traces() -> bool:
    """Say whether operators of this thread are traced or changed by a mode, as when AOTAutograd runs a function."""
    return find("torch.utils._python_dispatch._get_current_dispatch_mode")() is not None


def graph_point() -> list[Point]:
    """Return the function that hands a graph of Dynamo to the backend."""
    return [
        (
            "graph",
            find("torch._dynamo.output_graph.OutputGraph.call_user_compiler"),
            lambda new: replaced("torch._dynamo.output_graph.OutputGraph.call_user_compiler", new),
        )
    ]


def rewritten_collectives(module: Any) -> Iterator[Rewritten]:
    """Find the in-place collectives of a program through which gradients pass in a graph of Dynamo.

    Dynamo puts functional collectives in their place (`torch.distributed._functional_collectives`), which have
    gradients; the in-place ones have none. A call counts where its result needs a gradient and reaches an output of the
    graph that does.

    Args:
        module: The graph's module.
    """
    nodes = list(module.graph.nodes)
    for at, node in enumerate(nodes):
        target = str(node.target)
        called = target.startswith("_c10d_functional.") and "wait_tensor" not in target
        if not (called and _needs_gradient(node)):
            continue
        stack = node.stack_trace or ""
        call = next((call for name, call in _IN_PLACE.items() if f", in {name}\n" in stack), "")
        if call and _reaches(node, nodes[at:]):
            yield Rewritten(call, stack)


def _needs_gradient(node: Any) -> bool:
    return bool(getattr(node.meta.get("example_value"), "requires_grad", False))


def _reaches(start: Any, nodes: list[Any]) -> bool:
    """Whether a node's value reaches an output that needs a gradient; a copy into a tensor changes that one."""
    held = {start}
    for node in nodes:
        if node.op == "output":
            return any(one in held and _needs_gradient(one) for one in node.all_input_nodes)
        if held.intersection(node.all_input_nodes):
            held.add(node)
            if node.op == "call_method" and str(node.target).endswith("_") and node.args:
                held.add(node.args[0])
    return False

"""Graphs of Dynamo with the code that a backend made of them, and operators run in another precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oddrank.torch_names.names import current_compile_id, replaced, require

__all__ = [
    "around_compiled",
    "by_operators",
    "copied_with_strides",
    "inductor_random_as_eager",
    "input_names",
    "operators",
]


def around_compiled(around: Callable[..., Any]) -> Callable[[], None]:
    """Let `around(compile id, graph module, backend, compiled)` stand for what a backend makes of a graph of Dynamo.

    The graph module is a copy from before the backend got it, with the same parameters.

    Returns:
        A function that ends it.
    """
    import torch

    usual = require("torch._dynamo.output_graph.OutputGraph.call_user_compiler")

    def call(self: Any, gm: Any, *more: Any, **named: Any) -> Any:
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        copied = torch.fx.GraphModule(gm, graph)
        compiled = usual(self, gm, *more, **named)
        return around(current_compile_id(), by_operators(copied), self.compiler_fn, compiled)

    swap = replaced("torch._dynamo.output_graph.OutputGraph.call_user_compiler", call)
    swap.start()
    return swap.stop


def by_operators(graph: Any, _: Any = None) -> Any:
    """Let a graph of Dynamo compute what its program does in eager, operator by operator: a backend.

    The checkpoint of a graph leaves it to AOTAutograd to draw the same random numbers again.
    """
    from torch.utils.checkpoint import checkpoint

    usual = require("torch._higher_order_ops.wrap.tag_activation_checkpoint")
    for node in graph.graph.nodes:
        if node.target is usual:
            node.target = checkpoint
            node.kwargs = usual.divide_kwargs(node.kwargs)[1] | {"use_reentrant": False}
    graph.recompile()
    return graph


def copied_with_strides(tensor: Any) -> Any:
    """Copy a plain tensor with its strides, where elements share memory, too."""
    return require("torch._inductor.utils.clone_preserve_strides")(tensor)


def input_names(graph: Any) -> list[str]:
    """Return what a graph's inputs are called in the program, as far as Dynamo says."""
    found = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node.meta.get("grapharg"), "source", None)
            name = getattr(source, "name", None)  # a method before torch 2.12
            found.append(str(name() if callable(name) else name or node.name))
    return found


def inductor_random_as_eager() -> Any:
    """Give a context in which Inductor draws the random numbers of eager code."""
    require("torch._inductor.config.fallback_random")
    return require("torch._inductor.config.patch")(fallback_random=True)


def operators(wide: bool = False) -> Any:
    """Give a context that runs operators, and notes their `dtypes`.

    Args:
        wide: Whether every floating-point number is a float64, whatever the operators ask for.
    """
    import torch

    tree_map = require("torch.utils._pytree.tree_map")
    wider = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64)

    def widened(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return one.to(wider[one.dtype]) if one.dtype in wider else one
        return wider.get(one, one) if isinstance(one, torch.dtype) else one

    class Operators(require("torch.utils._python_dispatch.TorchDispatchMode")):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dtypes: set[torch.dtype] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if wide:
                args, kwargs = tree_map(widened, (args, kwargs or {}))
            found = func(*args, **(kwargs or {}))
            self.dtypes |= {found.dtype} if isinstance(found, torch.Tensor) else set()
            return found

    return Operators()

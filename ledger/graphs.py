"""What the compiler made of a program: its graphs and its code, for probes that read them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import run_and_get_code

__all__ = ["Graphs", "calls", "code", "first_line", "nodes"]


class Graphs:
    """A backend that keeps every graph, runs it as it is and counts how often; with `aot`, also those of AOTAutograd.

    Args:
        aot: also keep the graphs after AOTAutograd, in `forward` and `backward`.

    >>> backend = Graphs()
    >>> compiled = torch.compile(lambda x: x.sin().cos(), backend=backend)
    >>> _ = compiled(torch.ones(2)), compiled(torch.ones(2))
    >>> len(backend.dynamo), backend.ran, calls(backend.dynamo[0])
    (1, 2, ['sin', 'cos'])
    """

    def __init__(self, aot: bool = False) -> None:
        torch._dynamo.reset()
        self.dynamo: list[torch.fx.GraphModule] = []
        self.forward: list[torch.fx.GraphModule] = []
        self.backward: list[torch.fx.GraphModule] = []
        self.ran = 0
        self._aot = None
        if aot:
            keep = lambda into: lambda graph, inputs: (into.append(graph), graph.forward)[1]  # noqa: E731
            self._aot = aot_autograd(fw_compiler=keep(self.forward), bw_compiler=keep(self.backward))

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.dynamo.append(graph)
        run = self._aot(graph, inputs) if self._aot else graph.forward

        def counted(*arguments: Any) -> Any:
            self.ran += 1
            return run(*arguments)

        return counted


def calls(graph: torch.fx.GraphModule) -> list[str]:
    """List what a graph calls, in order, by short names: 'sin', '_c10d_functional.all_reduce'."""
    return [_short(node) for node in graph.graph.nodes if node.op.startswith("call")]


def nodes(graph: torch.fx.GraphModule, name: str) -> list[torch.fx.Node]:
    """List the nodes of a graph whose short name contains `name`."""
    return [node for node in graph.graph.nodes if node.op.startswith("call") and name in _short(node)]


def _short(node: torch.fx.Node) -> str:
    target = node.target
    if isinstance(target, functools.partial):
        target = target.func
    name = target if isinstance(target, str) else str(target)
    if name.startswith("<"):
        name = getattr(target, "__name__", name)
    return name.removesuffix(".default").removeprefix("torch.ops.")


def code(program: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Compile a program with Inductor, call it once, and return the code that Inductor wrote for it.

    Args:
        program, arguments: the call.
        options: of `torch.compile`.

    >>> "empty_strided" in code(lambda x: x.sin() + 1, torch.ones(2))
    True
    """
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
        return "\n".join(run_and_get_code(torch.compile(program, **options), *arguments)[1])


def first_line(error: BaseException) -> str:
    """The type of an exception and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160].rstrip(" :")

"""The real stream graphs of Dynamo and AOTAutograd, made on any machine.

Everything here happens in a child process that is thrown away: it has to pretend that there is an accelerator with
streams (`torch_compat.pretend_streams`), and autograd on such tensors can take a process down.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from course.shared.capture import Capture
from course.shared.streams import shipped
from course.shared.streams.graph import GraphNode, StreamGraph, StreamGraphs
from course.shared.streams.ops import DEFAULT, StreamError
from labkit import torch_compat
from labkit.pace import patience
from labkit.ranks import Ranks

__all__ = ["as_data", "called", "capture", "check_streams", "compiled", "in_a_child", "is_view", "short"]

TIMEOUT_S = 60.0  # most take one second; a child that has not answered by then is ended, by its id


def capture(fn: Callable[..., Any], *tensors: Any, streams: int = 1, gradients: bool = False) -> StreamGraphs:
    """The graphs that Dynamo and AOTAutograd make of `fn(*tensors, *streams)`; needs no GPU.

    streams: how many side streams `fn` takes after its tensors; in the graphs they are 's1', 's2', ... gradients:
    run the backward pass of the sum of what it returns as well. Where `fn` does not compile, `error` of the result
    says why. Where this torch compiles no streams (beta since torch 2.12), the graphs of the lessons' own functions
    come out of what is shipped, labelled; for others UnsupportedTorch is raised. Raises RankError where the child
    process fails, or has not answered within a minute: it is ended then.

    >>> import torch
    >>> def fn(x, side):
    ...     with side:
    ...         return x.sin()
    >>> capture(fn, torch.ones(4)).forward[0].nodes[-1].stream
    's1'
    """
    check_streams(streams)
    return in_a_child(_capture, fn, tensors, streams, gradients)


def check_streams(count: int) -> None:
    """Raise StreamError for a number of side streams that no function takes."""
    if not isinstance(count, int) or not 1 <= count <= 16:
        raise StreamError(f"streams must be a number from 1 to 16, got {count!r}")


def in_a_child(
    look: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT_S, ship: bool = True
) -> Any:
    """What `look(*arguments)` returns in a child process of its own, which is ended whatever happens.

    Where this torch compiles no streams: what is shipped of that call, unless not `ship`. Raises a StreamError that
    `look` returned, RankError where the child failed or took more than `timeout` seconds, UnsupportedTorch.
    """
    if not torch_compat.has_stream_graphs():
        if ship:
            return shipped.fetch(look, arguments)
        raise torch_compat.UnsupportedTorch(f"streams are compiled by torch {shipped.SINCE} and later")
    with Ranks(1, "cpu", "gloo", timeout=patience(timeout), quiet=True) as child:
        found = child.run(look, *arguments)[0]
    if isinstance(found, StreamError):
        raise found
    shipped.seen(look, arguments, found)
    return found


# --- in the child ---


def compiled(
    fn: Callable[..., Any], tensors: tuple, streams: int, gradients: bool
) -> tuple[list[Any], list[Any], list[Any], str]:
    """Dynamo's, forward and backward GraphModules of `fn`, and why it did not compile, or ''."""
    stream = torch_compat.pretend_streams()
    torch_compat.dynamo_reset()
    seen = Capture(aot=True)
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    sides = [stream(i + 1) for i in range(streams)]
    try:
        found = torch.compile(fn, backend=seen, fullgraph=True)(*given, *sides)
        if gradients:
            outputs = found if isinstance(found, (tuple, list)) else (found,)
            sum(y.sum() for y in outputs if y.requires_grad).backward()  # type: ignore[union-attr]
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if len(lines) > 1 and lines[0].endswith("raised:"):  # what a backend raised stands below its name
            del lines[0]
        said = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return seen.dynamo, seen.forward, seen.backward, said
    return seen.dynamo, seen.forward, seen.backward, ""


def _capture(fn: Callable[..., Any], tensors: tuple, streams: int, gradients: bool) -> StreamGraphs:
    return as_data(*compiled(fn, tensors, streams, gradients))


def as_data(dynamo: list[Any], forward: list[Any], backward: list[Any], error: str) -> StreamGraphs:
    """What `compiled` returned, as data."""
    name = called()
    return StreamGraphs(
        tuple(_plain("Dynamo's graph", g, name) for g in dynamo),
        tuple(_plain("forward graph", g, name) for g in forward),
        tuple(_plain("backward graph", g, name) for g in backward),
        error,
    )


def called() -> Callable[[Any], str]:
    """From the index of a stream in a graph to its name."""
    ids = torch_compat.stream_names()

    def name(index: Any) -> str:
        number = ids.get(index, 0) if index is not None else 0
        return f"s{number}" if number else DEFAULT

    return name


def _plain(name: str, module: Any, called: Callable[[Any], str]) -> StreamGraph:
    """A GraphModule as data."""
    memory: dict[Any, str] = {}  # node -> the node whose memory it is
    nodes: list[GraphNode] = []
    for node in module.graph.nodes:
        nodes += _read(node, module, memory, called)
    return StreamGraph(name, tuple(nodes), module.print_readable(print_output=False), torch.__version__)


def _read(node: Any, module: Any, memory: dict[Any, str], called: Callable[[Any], str]) -> list[GraphNode]:
    """One node of the graph, or what a control_deps stands for."""
    stream = called((node.meta.get("custom") or {}).get("stream"))
    needs = tuple(dict.fromkeys(n.name for n in node.all_input_nodes))
    memory[node] = node.name
    if node.op != "call_function":
        return [GraphNode(node.name, "input", str(node.target), needs=needs)] if node.op != "output" else []
    target = short(node.target)
    if node.target is torch_compat.control_deps():
        held = [n for n in getattr(module, node.args[1].target).graph.nodes if n.op == "call_function"]
        words = [_operator(inner) for inner in held]
        sync = next((i for i, word in enumerate(words) if word), None)
        if sync is None:
            return [GraphNode(node.name, "view", target, stream, needs)]
        arguments = _arguments(words[sync], held[sync].args, called)
        return [GraphNode(node.name, words[sync], target, stream, needs, arguments=arguments)]
    if word := _operator(node):
        arguments = _arguments(word, node.args, called)
        return [GraphNode(node.name, word, target, stream, needs, arguments=arguments)]
    if node.target is operator.getitem:
        of, index = node.args
        if getattr(of, "target", None) is torch_compat.control_deps() and index > 0:
            memory[node] = memory[of.args[1 + index]]
        else:
            memory[node] = memory[of]
        return [GraphNode(node.name, "view", target, stream, needs)]
    written, view = _writes(node)
    if view is not None:
        memory[node] = memory[view]
        return [GraphNode(node.name, "view", target, stream, needs)]
    if written:
        memory[node] = memory[written[0]]
    writes = tuple(dict.fromkeys(memory[n] for n in written)) or (node.name,)
    reads = tuple(dict.fromkeys(memory[n] for n in node.all_input_nodes))
    return [GraphNode(node.name, "kernel", target, stream, needs, reads, writes, size=_size(node))]


def short(target: Any) -> str:
    """The name of what a node calls, without its default overload."""
    return str(getattr(target, "__name__", target)).removesuffix(".default")


def _operator(node: Any) -> str:
    """The name of a stream operator; '' for any other node."""
    text = str(node.target)
    return text.split(".")[1] if text.startswith("streams.") else ""


def _arguments(word: str, args: Any, called: Callable[[Any], str]) -> tuple[str, ...]:
    """Events as 'e3', streams by name: which argument is which is the operator's own order."""
    if word in ("record_event", "wait_event", "sync_dealloc"):
        return (f"e{args[0]}", called(args[1]))
    if word == "wait_stream":
        return (called(args[0]), called(args[1]))
    if word == "synchronize_event":
        return (f"e{args[0]}",)
    return (called(args[0]),) if word == "synchronize_stream" else ()


def _writes(node: Any) -> tuple[list[Any], Any]:
    """The arguments that an operator writes into, and the argument that its result is a view of."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return [], None
    pairs = [(a, node.args[i]) for i, a in enumerate(schema.arguments[: len(node.args)])]
    nodes = [(a.alias_info, given) for a, given in pairs if hasattr(given, "op") and a.alias_info is not None]
    written = [given for alias, given in nodes if alias.is_write]
    viewed = [given for alias, given in nodes if not alias.is_write]
    returns = [r.alias_info for r in schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in returns)
    return written, viewed[0] if viewed and is_view and not written else None


def is_view(node: Any) -> bool:
    """Whether a node's result is a view of one of its arguments."""
    return _writes(node)[1] is not None


def _size(node: Any) -> int:
    value = node.meta.get("val")
    return int(value.numel() * value.element_size()) if hasattr(value, "numel") else 0

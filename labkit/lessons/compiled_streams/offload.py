"""Activation offloading: the graphs of AOTAutograd's real passes, and a model of time and memory that is made of them.

The graphs are real. The model is one: it takes each node as long as its bytes or flops say at rates that the reader
states, and simulates the result with the rules of `labkit.lessons.shared.streams`. Nothing in it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit import torch_compat
from labkit.lessons.compiled_streams.captured import _short, _writes, in_a_child
from labkit.lessons.shared.streams.ops import StreamError
from labkit.lessons.shared.streams.program import Program

__all__ = ["VARIANTS", "OffloadGraphs", "OffloadNode", "Rates", "offloaded", "step"]

VARIANTS: dict[str, dict[str, bool] | None] = {
    "none": None,
    "same stream": {},
    "own stream": {"activation_offload_separate_stream": True},
    "own stream, late wait, prefetch": {
        "activation_offload_separate_stream": True,
        "activation_offload_sink_wait": True,
        "activation_reload_prefetch": True,
    },
}
TRANSFER = "transfer"
MIB = 2**20


@dataclass(frozen=True)
class Rates:
    """What the model takes a machine to do: Tflop/s of products, GB/s of memory and of the link to the host."""

    tflops: float = 400.0
    memory_gbytes: float = 3000.0
    link_gbytes: float = 50.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise StreamError(f"{name} must be a number above 0, got {value!r}")


@dataclass(frozen=True)
class OffloadNode:
    """One node of a graph. word: 'kernel', 'view', 'input', 'copy', 'offload', 'reload' or 'wait'.

    size in bytes (0 for what is in the host's memory), flops of a product, `of`: the value whose memory a view has.
    """

    name: str
    word: str
    target: str
    needs: tuple[str, ...] = ()
    size: int = 0
    flops: int = 0
    of: str = ""
    moved: int = 0  # bytes that a kernel reads and writes, or that a copy carries


@dataclass(frozen=True)
class OffloadGraphs:
    """Forward and backward nodes in the order of the passes; `kept`: what forward hands to backward, by name."""

    variant: str
    forward: tuple[OffloadNode, ...]
    backward: tuple[OffloadNode, ...]
    outputs: tuple[str, ...]
    kept: tuple[str, ...]

    def words(self, of: str = "forward") -> list[str]:
        """The order of what matters: products, copies and waits by their names."""
        nodes = self.forward if of == "forward" else self.backward
        return [n.name for n in nodes if n.word in ("copy", "offload", "reload", "wait") or n.flops]

    def __repr__(self) -> str:
        moves = sum(n.word in ("copy", "offload", "reload") for n in self.forward + self.backward)
        return (
            f"{self.variant}: {len(self.forward)} + {len(self.backward)} nodes, {moves} copies over the link"
        )


def offloaded(
    variants: Iterable[str] = tuple(VARIANTS),
    *,
    layers: int = 6,
    width: int = 2048,
    tokens: int = 32768,
    choose: Sequence[int] | None = None,
    rates: Rates | None = None,
) -> dict[str, OffloadGraphs]:
    """The graphs of `layers` linear layers with a relu, bfloat16, as the passes of each variant leave them.

    choose: the layers (from 0) whose relu may be offloaded; by default all. rates: what the prefetch pass is told of
    the machine. The tensors are fake: no memory is taken. Raises StreamError for an unknown variant or a layer that is
    not there, UnsupportedTorch where this torch lacks the passes.

    >>> both = offloaded(["none", "own stream"], layers=2, width=8, tokens=16)
    >>> both["own stream"].words()
    ['mm', 'mm_1', 'async_cpu_offload_relu', 'cpu_offload_relu']
    """
    names = list(variants)
    if unknown := [name for name in names if name not in VARIANTS]:
        raise StreamError(f"no variant is called {unknown[0]!r}; there is {', '.join(VARIANTS)}")
    for name, value in {"layers": layers, "width": width, "tokens": tokens}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise StreamError(f"{name} must be a whole number of 1 or more, got {value!r}")
    chosen = list(range(layers)) if choose is None else list(choose)
    if wrong := [i for i in chosen if i not in range(layers)]:
        raise StreamError(f"there is no layer {wrong[0]!r}; there are 0 to {layers - 1}")
    return in_a_child(_offloaded, names, layers, width, tokens, chosen, rates or Rates())


def step(graphs: OffloadGraphs, rates: Rates | None = None) -> Program:
    """A training step as a stream program in ms and MiB: kernels, copies, waits, and every allocation and free.

    Memory is given back behind the last node that uses it, as Inductor's code does. What an asynchronous copy reads or
    writes stays until its wait. Weights, inputs and gradients count; optimizer states do not.
    """
    return _Step(graphs, rates or Rates()).program


# --- in the child ---


def _offloaded(
    names: list[str], layers: int, width: int, tokens: int, chosen: list[int], rates: Rates
) -> dict[str, OffloadGraphs]:
    torch_compat.pretend_streams()
    milliseconds = 2 * tokens * width * width / (rates.tflops * 1e9)

    def model(x: Any, weights: Any) -> Any:
        for weight in weights:
            x = torch.relu(x @ weight)
        return x

    found = {}
    for name in names:
        torch_compat.dynamo_reset()
        forward: list[Any] = []
        backward: list[Any] = []
        backend = torch_compat.aot_backend(forward, backward, min_cut=True)
        settings = VARIANTS[name]
        seen: list[Any] = []

        def choose(node: Any, seen: list[Any] = seen) -> bool:
            if node.target is not torch.ops.aten.relu.default:
                return False
            seen.append(node)
            return seen.index(node) in chosen

        context: Any = torch_compat.patched("functorch.config")
        if settings is not None:
            context = torch_compat.offload_settings(
                choose, milliseconds, activation_offload_cpu_gpu_bw=rates.link_gbytes, **settings
            )
        with context, torch_compat.fake_tensors():
            kind: dict[str, Any] = {"dtype": torch.bfloat16, "requires_grad": True}
            x = torch.empty(tokens, width, **kind)
            weights = [torch.empty(width, width, **kind) for _ in range(layers)]
            torch.compile(model, backend=backend, fullgraph=True)(x, weights).sum().backward()
        outputs = [getattr(n, "name", "") for n in _output(forward[0])]
        found[name] = OffloadGraphs(
            name, _nodes(forward[0]), _nodes(backward[0]), tuple(outputs[:1]), tuple(outputs[1:])
        )
    return found


def _output(graph: Any) -> Any:
    return next(n for n in graph.graph.nodes if n.op == "output").args[0]


def _nodes(module: Any) -> tuple[OffloadNode, ...]:
    return tuple(_read(n) for n in module.graph.nodes if n.op in ("placeholder", "call_function"))


def _read(node: Any) -> OffloadNode:
    value, needs = node.meta.get("val"), tuple(n.name for n in node.all_input_nodes)
    size = int(value.numel() * value.element_size()) if hasattr(value, "numel") else 0
    target = _short(node.target)
    if node.op == "placeholder":
        return OffloadNode(node.name, "input", "", (), 0 if "offload" in node.name else size)
    text = str(node.target)
    if "ao.offload" in text:
        return OffloadNode(node.name, "offload", target, needs, moved=size)
    if "ao.reload" in text:
        return OffloadNode(node.name, "reload", target, needs, size, moved=size)
    if "ao.wait_tensor" in text:
        return OffloadNode(node.name, "wait", target, needs, of=needs[0])
    if "device_put" in text:
        away = node.name.startswith("cpu_offload")
        return OffloadNode(node.name, "copy", target, needs, 0 if away else size, moved=size)
    if _writes(node)[1] is not None:
        return OffloadNode(node.name, "view", target, needs, of=needs[0])
    flops = 0
    if "aten.mm" in text:
        (rows, inner), columns = node.args[0].meta["val"].shape, node.args[1].meta["val"].shape[1]
        flops = int(2 * rows * inner * columns)
    reads = sum(int(n.meta["val"].numel() * n.meta["val"].element_size()) for n in node.all_input_nodes)
    return OffloadNode(node.name, "kernel", target, needs, size, flops, moved=size + reads)


class _Step:
    """Writes the program: forward nodes, then backward nodes, each value freed behind its last use."""

    def __init__(self, graphs: OffloadGraphs, rates: Rates) -> None:
        self.graphs, self.rates = graphs, rates
        self.program = Program(graphs.variant, TRANSFER, unit="ms")
        self.base: dict[str, str] = {}
        self.live: set[str] = set()
        nodes = [*graphs.forward, *(n for n in graphs.backward if n.word != "input")]
        inputs = [n for n in graphs.backward if n.word == "input" and n.name not in {m.name for m in nodes}]
        for node in (*graphs.forward, *inputs, *nodes):
            self.base[node.name] = self.base.get(node.of, node.of) or node.name
        produced = {n.name: n for n in (*inputs, *nodes)}
        last = {self.base[n.name]: n.name for n in nodes}
        for node in nodes:
            last |= {self.base[name]: node.name for name in node.needs if name in self.base}
        ends: dict[str, list[str]] = {}
        inside = {n.name for n in graphs.backward}
        users = {name for n in graphs.backward if n.word != "input" for name in n.needs}
        for base, name in last.items():
            # what forward was given and what backward returns belongs to the caller
            mine = produced.get(base)
            gradient = base in inside and base not in users
            if mine is not None and mine.word != "input" and mine.size and not gradient:
                ends.setdefault(name, []).append(base)
        forward = len(graphs.forward)  # what comes into the backward pass is there when forward is done
        for node in (*nodes[:forward], *inputs, *nodes[forward:]):
            self._write(node)
            for base in ends.get(node.name, ()):
                if base in self.live:
                    self.live.discard(base)
                    self.program.free(base)

    def _write(self, node: OffloadNode) -> None:
        if node.size:
            self.program.alloc(node.name, node.size / MIB)
            self.live.add(node.name)
        reads = tuple(dict.fromkeys(self.base[name] for name in node.needs if name in self.base))
        uses: dict[str, Any] = {"reads": reads, "writes": node.name}
        if node.word == "kernel":
            longest = max(
                node.flops / (self.rates.tflops * 1e9), node.moved / (self.rates.memory_gbytes * 1e6)
            )
            self.program.kernel(node.name, longest, **uses)
        elif node.word == "copy":
            self.program.copy(_short_name(node), self._carried(node), **uses)
        elif node.word in ("offload", "reload"):
            self.program.wait_stream("default", on=TRANSFER)
            self.program.copy(_short_name(node), self._carried(node), on=TRANSFER, **uses)
            self.program.record(node.name, TRANSFER)
        elif node.word == "wait":
            self.program.wait(node.needs[0])

    def _carried(self, node: OffloadNode) -> float:
        return node.moved / (self.rates.link_gbytes * 1e6)


def _short_name(node: OffloadNode) -> str:
    """A copy's name in a timeline, where bars are narrow: 'out 2' and 'in 2' of the third activation."""
    number = re.search(r"_(\d+)$", node.name)
    return f"{'out' if 'offload' in node.name else 'in'} {number[1] if number else 0}"

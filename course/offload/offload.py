"""Activation offloading: the graphs of AOTAutograd's real passes, and a model of time and memory made of them.

The graphs are real. The model takes each node as long as its bytes or flops say at rates that the reader states, and
simulates the result with the rules of `course.shared.streams`. Nothing in it was measured.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch

from course.shared.program import Program as Code
from course.shared.program import choose
from course.shared.streams import shipped, simulate
from course.shared.streams.captured import in_a_child, is_view, short
from course.shared.streams.ops import StreamError
from course.shared.streams.program import Program
from labkit import torch_compat

__all__ = ["NEEDED", "OffloadGraphs", "OffloadNode", "Rates", "model_times", "step", "trace"]

NEEDED = ("Shape", "Model", "WAYS")  # what is taken of the program
TRANSFER = "transfer"
MIB = 2**20


@dataclass(frozen=True)
class Rates:
    """What the model takes a machine to do: Tflop/s of products, GB/s of memory and of the link to the host.

    Raises:
        StreamError: a rate is not above 0.
    """

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
    moved: int = 0  # bytes that a kernel reads and writes, or that a copy carries
    of: str = ""


@dataclass(frozen=True)
class OffloadGraphs:
    """Forward and backward nodes in the order of the passes; `kept`: what forward hands to backward, by name."""

    way: str
    forward: tuple[OffloadNode, ...]
    backward: tuple[OffloadNode, ...]
    kept: tuple[str, ...]


shipped.ships(OffloadNode, OffloadGraphs)


def trace(
    shape: Any,
    ways: Sequence[str] = (),
    *,
    program: Any = None,
    schedule: Callable[[Any, Any], Any] | None = None,
    rates: Rates | None = None,
) -> dict[str, OffloadGraphs]:
    """Trace a training step in some ways, as AOTAutograd's passes leave its graphs; the tensors are fake.

    Args:
        shape: a `Shape` of the program.
        ways: names from the program's `WAYS`; empty for all.
        program: what has the names of `NEEDED`; None for the lesson's own.
        schedule: called with the forward and the backward `torch.fx.Graph` of each way, which it may change.
        rates: what the prefetch pass is told of the machine.

    Returns:
        The graphs by way.

    Raises:
        StreamError: there is no such way, or `schedule` left a graph in which a value is used before it is made.
        UnsupportedTorch: this torch lacks the passes, and no graphs of this program are shipped.
    """
    code = choose("offload", program, NEEDED)
    names = list(ways) or list(code.code.WAYS)
    if unknown := [name for name in names if name not in code.code.WAYS]:
        raise StreamError(f"no way is called {unknown[0]!r}; there is {', '.join(code.code.WAYS)}")
    return in_a_child(_traced, code, shape, names, schedule, rates or Rates(), timeout=900)


def step(graphs: OffloadGraphs, rates: Rates | None = None) -> Program:
    """Write a training step as a stream program in ms and MiB: kernels, copies, waits, every allocation and free.

    Memory is given back after the last node that uses it, as Inductor's code does. What an asynchronous copy reads or
    writes stays until its wait. Weights, inputs and gradients count; optimizer states do not.
    """
    return _Step(graphs, rates or Rates()).program


def model_times(graphs: Mapping[str, OffloadGraphs], rates: Rates | None = None) -> pd.DataFrame:
    """Model the step of each way.

    Args:
        graphs: by way; the first is what the others are compared with.
        rates: of the machine.

    Returns:
        A row for each way: `step_ms`, `peak_mib`, `slower_percent` and `saved_percent` against the first, and
        `hidden_percent`, the share of the copies' time that stands beside a kernel. All of it is modelled.

    Raises:
        ValueError: there are no graphs.
    """
    if not graphs:
        raise ValueError("there is no way to compare")
    runs = {name: simulate(step(one, rates)) for name, one in graphs.items()}
    rows = [(n, r.makespan, r.peak, 100 * r.hidden() if r.communication() else None) for n, r in runs.items()]
    table = pd.DataFrame(rows, columns=["way", "step_ms", "peak_mib", "hidden_percent"]).set_index("way")
    first = table.iloc[0]
    table.insert(2, "saved_percent", 100 * (1 - table["peak_mib"] / first["peak_mib"]))
    table.insert(3, "slower_percent", 100 * (table["step_ms"] / first["step_ms"] - 1))
    return table


# --- in the child ---


def _traced(code: Code, shape: Any, ways: list[str], schedule: Any, rates: Rates) -> Any:
    torch_compat.pretend_streams()
    torch.set_default_dtype(torch.bfloat16)  # this process is thrown away
    # what the prefetch pass would measure on a GPU: a product of width x width over all tokens
    tokens = shape.batch * shape.sequence
    torch_compat.state_product(2 * tokens * shape.width**2 / (rates.tflops * 1e9))
    found = {}
    for way in ways:
        torch_compat.dynamo_reset()
        forward: list[Any] = []
        backward: list[Any] = []
        backend = torch_compat.aot_backend(forward, backward, min_cut=True, schedule=schedule)
        settings = dict(code.code.WAYS[way])
        if settings:
            settings["activation_offload_cpu_gpu_bw"] = rates.link_gbytes
        with torch_compat.patched("functorch.config", **settings), torch_compat.fake_tensors():
            model = code.code.Model(shape)
            x = torch.empty(shape.batch, shape.sequence, shape.width)
            torch.compile(model, backend=backend, fullgraph=True)(x).backward()
        kept = [getattr(n, "name", "") for n in _output(forward[0])][1:]  # after the loss
        found[way] = OffloadGraphs(way, _nodes(forward[0]), _renamed(_nodes(backward[0])), tuple(kept))
    return found


def _output(graph: Any) -> Any:
    return next(n for n in graph.graph.nodes if n.op == "output").args[0]


def _nodes(module: Any) -> tuple[OffloadNode, ...]:
    return tuple(_read(n) for n in module.graph.nodes if n.op in ("placeholder", "call_function"))


def _renamed(nodes: tuple[OffloadNode, ...]) -> tuple[OffloadNode, ...]:
    """A backward graph whose own values are told from those of the forward graph, which has the same names."""
    names = {n.name: n.name if n.word == "input" else f"b.{n.name}" for n in nodes}
    return tuple(
        replace(n, name=names[n.name], needs=tuple(names[one] for one in n.needs), of=names.get(n.of, ""))
        for n in nodes
    )


def _bytes(node: Any) -> int:
    value = node.meta.get("val")
    return int(value.numel() * value.element_size()) if isinstance(value, torch.Tensor) else 0


def _read(node: Any) -> OffloadNode:
    size, needs = _bytes(node), tuple(n.name for n in node.all_input_nodes)
    target, text = short(node.target), str(node.target)
    if node.op == "placeholder":
        return OffloadNode(node.name, "input", "", (), 0 if "offload" in node.name else size)
    if "ao.offload" in text:
        return OffloadNode(node.name, "offload", target, needs, moved=size)
    if "ao.reload" in text:
        return OffloadNode(node.name, "reload", target, needs, size, moved=size)
    if "ao.wait_tensor" in text:
        return OffloadNode(node.name, "wait", target, needs, of=needs[0])
    if "device_put" in text:
        away = node.name.startswith("cpu_offload")
        return OffloadNode(node.name, "copy", target, needs, 0 if away else size, moved=size)
    if is_view(node) or "unsafe_view" in text:
        return OffloadNode(node.name, "view", target, needs, of=needs[0])
    if node.target is operator.getitem:  # one of several results: its memory, and no work
        return OffloadNode(node.name, "kernel", target, needs, size)
    moved = size + sum(map(_bytes, node.all_input_nodes))
    return OffloadNode(node.name, "kernel", target, needs, size, _flops(node, text), moved)


def _flops(node: Any, text: str) -> int:
    """The operations of a product or of causal attention; 0 for what only moves bytes."""
    if "aten.mm" in text:
        (rows, inner), columns = node.args[0].meta["val"].shape, node.args[1].meta["val"].shape[1]
        return int(2 * rows * inner * columns)
    if "scaled_dot_product" in text:
        backward = "backward" in text
        batch, heads, tokens, head = node.args[1 if backward else 0].meta["val"].shape
        one = (
            batch * heads * tokens * tokens * head
        )  # a product of (tokens, head) and (head, tokens), of which half
        return int(5 * one if backward else 2 * one)
    return 0


class _Step:
    """Writes the program: forward nodes, then backward nodes, each value freed after its last use."""

    def __init__(self, graphs: OffloadGraphs, rates: Rates) -> None:
        self.graphs, self.rates = graphs, rates
        self.program = Program(graphs.way, TRANSFER, unit="ms")
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
            self.program.kernel(_short_name(node), self._carried(node), **uses, kind="copy")
        elif node.word in ("offload", "reload"):
            self.program.wait_stream("default", on=TRANSFER)
            self.program.kernel(_short_name(node), self._carried(node), TRANSFER, **uses, kind="copy")
            self.program.record(node.name, TRANSFER)
        elif node.word == "wait":
            self.program.wait(node.needs[0])

    def _carried(self, node: OffloadNode) -> float:
        return node.moved / (self.rates.link_gbytes * 1e6)


def _short_name(node: OffloadNode) -> str:
    """A copy's name in a timeline, where bars are narrow: 'out 2' and 'in 2' of the third activation."""
    number = re.search(r"_(\d+)$", node.name)
    return f"{'out' if 'offload' in node.name else 'in'} {number[1] if number else 0}"

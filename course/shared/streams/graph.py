"""A compiled graph with streams as plain data, and as a stream program that can be simulated and checked."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from course.shared.streams.hazards import Race
from course.shared.streams.ops import DEFAULT, Kernel
from course.shared.streams.program import Program
from course.shared.streams.simulator import simulate

__all__ = ["GraphNode", "StreamGraph", "StreamGraphs"]


@dataclass(frozen=True)
class GraphNode:
    """One node of a graph. `word` is 'kernel', 'view', 'input', or a stream operator's name such as 'wait_event'.

    stream: its stream's name; needs: nodes that must stand before it in any order; reads, writes: the nodes whose
    memory it uses; arguments: of a stream operator, events by 'e3' and streams by their names. size in bytes.
    """

    name: str
    word: str
    target: str
    stream: str = DEFAULT
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True)
class StreamGraph:
    """The nodes of one graph in order, its text as torch prints it, and where it comes from.

    `torch` is the version that made it; `label` is what a figure says of its origin.
    """

    name: str
    nodes: tuple[GraphNode, ...]
    text: str
    torch: str = ""
    label: str = "captured here"

    @property
    def streams(self) -> list[str]:
        """The streams besides the default one, in the order of their first use."""
        used = [n.stream for n in self.nodes]
        used += [a for n in self.nodes for a in n.arguments if not a.startswith("e")]
        return [stream for stream in dict.fromkeys(used) if stream != DEFAULT]

    def program(self, duration: Callable[[GraphNode], float] = lambda node: 1.0) -> Program:
        """The graph as a stream program; `duration` gives each kernel's, in units.

        Views use their tensor's memory and take no time.
        """
        made = Program(self.name, self.streams)
        for node in self.nodes:
            if node.word == "kernel":
                made.add(Kernel(node.name, duration(node), node.stream, node.reads, node.writes))
            else:
                _translate(made, node)
        return made

    def races(self) -> tuple[Race, ...]:
        """The races of the graph in its own order."""
        return simulate(self.program()).races

    def shuffled(self, seed: int) -> StreamGraph:
        """The same nodes in another order that keeps every value's producer before its users, and nothing else.

        What holds in all of these is what the graph itself says. No pass of torch is known to make such an order.
        """
        draw, left = random.Random(seed), {n.name: set(n.needs) for n in self.nodes}
        order: list[GraphNode] = []
        while left:
            ready = [n for n in self.nodes if n.name in left and not left[n.name]]
            order.append(draw.choice(ready))
            del left[order[-1].name]
            for needs in left.values():
                needs.discard(order[-1].name)
        return replace(self, nodes=tuple(order))

    def __repr__(self) -> str:
        kernels = sum(n.word == "kernel" for n in self.nodes)
        syncs = sum(n.word not in ("kernel", "view", "input") for n in self.nodes)
        on = ", ".join([DEFAULT, *self.streams])
        return f"{self.name}: {kernels} kernels, {syncs} stream operators, on {on}"


@dataclass(frozen=True)
class StreamGraphs:
    """What `capture` found: Dynamo's graph, and AOTAutograd's forward and (with gradients) backward."""

    dynamo: tuple[StreamGraph, ...]
    forward: tuple[StreamGraph, ...]
    backward: tuple[StreamGraph, ...] = ()
    error: str = ""

    def __repr__(self) -> str:
        if self.error:
            return f"not compiled: {self.error}"
        return "\n".join(map(repr, (*self.dynamo, *self.forward, *self.backward)))


def _translate(made: Program, node: GraphNode) -> None:
    """A stream operator as an op: sync_dealloc is a wait of the owner before the memory may be used again."""
    arguments = node.arguments
    if node.word == "record_event":
        made.record(*arguments)
    elif node.word in ("wait_event", "sync_dealloc"):
        made.wait(*arguments[:2])
    elif node.word == "wait_stream":
        made.wait_stream(arguments[1], on=arguments[0])
    elif node.word == "synchronize_event":
        made.synchronize(event=arguments[0])
    elif node.word == "synchronize_stream":
        made.synchronize(arguments[0])
    elif node.word == "synchronize_device":
        made.synchronize()

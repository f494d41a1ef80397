"""Runs a graph with streams for real, one thread for each stream, so that what nothing orders does run out of order."""

from __future__ import annotations

import operator
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from course.shared.streams.captured import as_data, called, compiled
from course.shared.streams.graph import StreamGraphs
from course.shared.streams.ops import StreamError
from labkit import torch_compat

__all__ = ["Device", "Replay", "tried"]

PATIENCE_S = 20.0  # well inside what its process is given, so that it can still say which stream stands


@dataclass(frozen=True)
class Replay:
    """What came out of a graph that ran with one thread for each stream: `values`, beside what `expected` has in order.

    All are lists of numbers. `inputs`: what the caller's tensors hold afterwards.
    """

    values: list[Any]
    expected: list[Any]
    inputs: list[Any]


def tried(
    fn: Callable[..., Any], tensors: tuple[Any, ...], streams: int, late: float
) -> tuple[StreamGraphs, list[Replay]]:
    """Run the forward graph of `fn` on threads: as it is, and with each kernel in turn `late` seconds late.

    For a child process, as `capture` starts one. Returns the graphs as well; no runs where `fn` does not compile.
    """
    found = compiled(fn, tensors, streams, False)
    graphs = as_data(*found)
    if graphs.error or not graphs.forward:
        return graphs, []
    kernels = [n.name for n in graphs.forward[0].nodes if n.word == "kernel"]
    slow: list[dict[str, float]] = [{}, *({name: late} for name in kernels)]
    return graphs, [_replay(found[1][0], tensors, one) for one in slow]


def _replay(module: Any, tensors: tuple[Any, ...], slow: Mapping[str, float]) -> Replay:
    given = [t.detach().clone() for t in tensors]
    with torch.no_grad():
        found = Device(called()).run(module, given, slow)
        # in order, one after another: what the program means where nothing runs beside it
        expected = module(*[t.detach().clone() for t in tensors])
    return Replay(*([t.tolist() for t in some] for some in (found, expected, given)))


class _Stream:
    """A queue of work and the thread that does it, one piece after another."""

    def __init__(self, name: str) -> None:
        self.name, self.failed = name, None
        self._work: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=f"stream {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (piece := self._work.get()) is not None:
            try:
                piece()
            except Exception as error:  # said by whoever synchronizes
                self.failed = error  # type: ignore[assignment]

    def put(self, piece: Callable[[], Any]) -> None:
        self._work.put(piece)

    def record(self) -> threading.Event:
        flag = threading.Event()
        self.put(flag.set)
        return flag

    def wait(self, flag: threading.Event) -> None:
        self.put(lambda: flag.wait(PATIENCE_S))

    def synchronize(self) -> None:
        if not self.record().wait(PATIENCE_S):
            raise StreamError(f"stream {self.name!r} does not come to an end")
        if self.failed:
            raise self.failed

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(PATIENCE_S)


class Device:
    """Streams as threads. `called` turns the index of a stream in a graph into its name.

    Every output is filled with NaN before its kernel is launched: a read that comes too early is seen in the numbers.
    """

    def __init__(self, called: Callable[[Any], str]) -> None:
        self.called = called
        self._streams: dict[str, _Stream] = {}
        self._events: dict[int, threading.Event] = {}

    def run(self, module: Any, inputs: list[Any], slow: Mapping[str, float]) -> list[Any]:
        """Launch the graph node by node, wait for all streams, and return its outputs."""
        values: dict[Any, Any] = {}
        given = iter(inputs)
        deps = torch_compat.control_deps()
        try:
            for node in module.graph.nodes:
                if node.op == "placeholder":
                    values[node] = next(given)
                elif node.op == "get_attr":
                    values[node] = getattr(module, node.target)
                elif node.op == "output":
                    for stream in self._streams.values():
                        stream.synchronize()
                    found = torch.fx.map_arg(node.args[0], lambda n: values[n])
                    return list(found) if isinstance(found, (tuple, list)) else [found]
                elif node.target is deps:
                    for inner in values[node.args[1]].graph.nodes:
                        if inner.op == "call_function":
                            self._stream_operator(inner)
                    values[node] = (None, *(values[n] for n in node.args[2:]))
                elif node.target is operator.getitem and isinstance(values[node.args[0]], tuple):
                    values[node] = values[node.args[0]][node.args[1]]
                elif self._stream_operator(node):
                    values[node] = None
                else:
                    values[node] = self._launch(node, values, slow.get(node.name, 0.0))
            return []
        finally:
            for stream in self._streams.values():
                stream.close()

    def _stream(self, index: Any) -> _Stream:
        name = self.called(index)
        if name not in self._streams:
            self._streams[name] = _Stream(name)
        return self._streams[name]

    def _launch(self, node: Any, values: dict[Any, Any], late: float) -> Any:
        arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), lambda n: values[n])
        stream = self._stream((node.meta.get("custom") or {}).get("stream"))
        schema = getattr(node.target, "_schema", None)
        alias = any(r.alias_info is not None for r in schema.returns) if schema is not None else False
        value = node.meta["val"]
        out = None if alias else torch.full(value.shape, float("nan"), dtype=value.dtype)

        def kernel() -> None:
            time.sleep(late)
            found = node.target(*arguments, **keywords)
            if out is not None:
                out.copy_(found)

        if alias and schema is not None and not schema.is_mutable:
            return node.target(*arguments, **keywords)  # a view: the host makes it, nothing is launched
        stream.put(kernel)
        return arguments[0] if alias else out

    def _stream_operator(self, node: Any) -> bool:
        text = str(node.target)
        if not text.startswith("streams."):
            return False
        word, args = text.split(".")[1], node.args
        if word == "record_event":
            self._events[args[0]] = self._stream(args[1]).record()
        elif word in ("wait_event", "sync_dealloc"):
            if args[0] in self._events:
                self._stream(args[1]).wait(self._events[args[0]])
        elif word == "wait_stream":
            self._stream(args[0]).wait(self._stream(args[1]).record())
        elif word == "synchronize_event":
            if args[0] in self._events:
                self._events[args[0]].wait(PATIENCE_S)
        elif word == "synchronize_stream":
            self._stream(args[0]).synchronize()
        elif word == "synchronize_device":
            for stream in self._streams.values():
                stream.synchronize()
        return True

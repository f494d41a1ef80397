"""What Dynamo, AOTAutograd and Inductor do with streams besides the graphs: prefix, table, caches, what is saved.

Like the captured graphs, all of this is looked at in a child process that pretends to have an accelerator.
"""

from __future__ import annotations

import dis
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit import files, torch_compat
from labkit.lessons.compiled_streams.captured import _as_data, _compiled, _streams, in_a_child
from labkit.lessons.shared.streams.graph import StreamGraphs
from labkit.lessons.shared.streams.ops import StreamError

__all__ = ["Inside", "cache_hits", "inductor_code", "inductor_text", "look", "unchecked"]

FILE = files.ours("data/captured/inductor_streams.json")
GRAPH = "__compiled_fn"


@dataclass(frozen=True)
class Inside:
    """What is around a compiled graph with streams.

    prefix: the instructions that run before the graph and name the table, as texts. table: (index, object) of what the
    graph may fetch. metadata: (graph, node, what `node.meta["custom"]` holds). code: the Python that the backend
    'eager' would run.
    """

    prefix: tuple[str, ...]
    table: tuple[tuple[int, str], ...]
    metadata: tuple[tuple[str, str, str], ...]
    code: str


def look(fn: Callable[..., Any], *tensors: Any, streams: int = 1) -> Inside:
    """The prefix bytecode, the table of objects and the nodes' metadata of `fn(*tensors, *streams)`.

    Raises StreamError where it does not compile, and what `capture` raises.

    >>> import torch
    >>> def fn(x, side):
    ...     with side:
    ...         return x.sin()
    >>> look(fn, torch.ones(4)).metadata[-1]
    ('forward graph', 'sin', "{'stream': 1}")
    """
    _streams(streams)
    return in_a_child(_look, fn, tensors, streams)


def unchecked(fn: Callable[..., Any], *tensors: Any, streams: int = 1) -> StreamGraphs:
    """The graphs of `fn` without Dynamo's check of events behind a changed input: what the check protects from."""
    _streams(streams)
    return in_a_child(_unchecked, fn, tensors, streams)


def cache_hits(*orders: Sequence[Callable[..., Any]], streams: int = 1) -> list[dict[str, Any]]:
    """Compile functions of (x, *streams) with Inductor on the CPU, in some orders, with an empty cache for each order.

    x: a square matrix of 16 rows; where a function is only products, no C++ is compiled. For each function of each
    order: how often it hit and missed Inductor's cache. The code is run as well; `error` says why where it cannot be:
    a CPU has no streams, and code with streams in it names what is not there.
    """
    _streams(streams)
    return in_a_child(_cache_hits, [tuple(order) for order in orders], streams, 16)


def inductor_code(*functions: Callable[..., Any], streams: int = 1) -> dict[str, str]:
    """What Inductor writes for CUDA of functions of (x, *streams), by their names: written, never run.

    Takes the triton package and no GPU: the compiler is told of an H100, and the tensors are fake. Raises
    UnsupportedTorch without triton.
    """
    _streams(streams)
    return in_a_child(_inductor_code, functions, streams, 1024, ship=False)


def inductor_text() -> dict[str, str]:
    """What Inductor wrote for CUDA of some functions without and with streams, captured and shipped with labkit.

    Keys: 'plain', 'streamed' and more names of functions (Python, Triton kernels included), 'source' of the first two,
    'sources' of all, 'torch', 'label'. `python -m tools.recapture inductor` makes it
    anew, which takes the triton package; running it takes a GPU. Raises ValueError where labkit stands without its
    repository.
    """
    try:
        return dict(json.loads(FILE.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError("the captured code is part of the repository: run labkit from a checkout") from error


# --- in the child ---


def _look(fn: Callable[..., Any], tensors: tuple, streams: int) -> Any:
    made: list[tuple[Any, Any]] = []
    end = torch_compat.bytecode_hook(lambda before, after: made.append((before, after)))
    try:
        dynamo, forward, _, error = _compiled(fn, tensors, streams, False)
    finally:
        end()
    if error:
        return StreamError(f"it does not compile: {error}")
    after = next(after for before, after in made if before.co_name == fn.__name__)
    table = tuple((i, _object(o)) for i, o in sorted(torch_compat.external_objects().items()))
    metadata = tuple(
        (name, node.name, str(node.meta.get("custom") or ""))
        for name, graph in (("Dynamo's graph", dynamo[0]), ("forward graph", forward[0]))
        for node in graph.graph.nodes
        if node.op == "call_function"
    )
    return Inside(_prefix(after), table, metadata, dynamo[0].code.strip())


def _prefix(code: Any) -> tuple[str, ...]:
    """Instructions with a name or a constant in them, up to the call of the graph."""
    found = []
    for one in dis.get_instructions(code):
        if GRAPH in one.argrepr:
            break
        if one.argrepr and not one.opname.startswith(("COPY", "DELETE", "STORE", "SWAP")):
            found.append(f"{one.opname} {one.argrepr}")
    return tuple(found)


def _object(given: Any) -> str:
    if isinstance(given, torch.Stream):
        return f"stream {given.stream_id}" if given.stream_id else "stream 0, the ambient one"
    return "gone" if given is None else type(given).__name__.lower()


def _unchecked(fn: Callable[..., Any], tensors: tuple, streams: int) -> StreamGraphs:
    torch_compat.no_mutation_check()
    return _as_data(*_compiled(fn, tensors, streams, False))


def _cache_hits(orders: list[tuple], streams: int, size: int) -> list[dict[str, Any]]:
    rows = []
    stream = torch_compat.pretend_streams()
    for number, functions in enumerate(orders):
        with tempfile.TemporaryDirectory(prefix="labkit-cache-") as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            for fn in functions:
                torch_compat.dynamo_reset()
                before = torch_compat.cache_counters()
                error = ""
                sides = [stream(i + 1) for i in range(streams)]
                try:
                    torch.compile(fn, fullgraph=True)(torch.ones(size, size), *sides)
                except Exception as caught:  # a CPU has no streams: its code may name what is not there
                    error = f"{type(caught).__name__}: {caught}".splitlines()[0]
                now = torch_compat.cache_counters()
                hits, misses = (
                    now.get(name, 0) - before.get(name, 0)
                    for name in ("fxgraph_cache_hit", "fxgraph_cache_miss")
                )
                row = {"order": number, "function": fn.__name__, "cache hits": hits, "cache misses": misses}
                rows.append({**row, "error": error})
    return rows


def _inductor_code(functions: tuple, streams: int, size: int) -> dict[str, str]:
    stream = torch_compat.pretend_streams()
    torch_compat.pretend_h100()
    found = {}
    with tempfile.TemporaryDirectory(prefix="labkit-cache-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for fn in functions:
            torch_compat.dynamo_reset()
            sides = [stream(i + 1) for i in range(streams)]
            with torch_compat.fake_tensors(), torch_compat.only_written() as written:
                try:
                    torch.compile(fn, fullgraph=True)(torch.empty(size, device="cuda"), *sides)
                except Exception:  # it stops where the code would be compiled
                    if not written:
                        raise
            found[fn.__name__] = written[0]
    return found

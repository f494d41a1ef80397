"""One block traced for many world sizes, in one process, without anything of that size: fake group, fake tensors.

What comes out is what the compiler made of one rank's part: its graph, its collectives and their bytes. No arithmetic
is done and nothing is sent, so there is no time in it, and its numbers would be wrong if there were any.
"""

from __future__ import annotations

import gc
import hashlib
import re
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from course.shared.costs import terms
from course.shared.model_size import check_split

__all__ = ["LARGEST", "WORLDS", "parse_worlds", "trace", "trace_all"]

WORLDS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LARGEST = 1 << 20

_FILE = re.compile(r"\n\s*# File:[^\n]*")


def parse_worlds(worlds: str | Sequence[int], config: Any) -> tuple[int, ...]:
    """World sizes, ascending, out of numbers or of text such as '2,4,1024'; each splits the block of `config`.

    Raises ValueError naming the one that is no world size or over which the block cannot be split evenly.

    >>> from labkit import lessons
    >>> parse_worlds("4, 2", lessons.program("cliff").Config(dim=64, heads=8))
    (2, 4)
    """
    found: set[int] = set()
    for given in worlds.split(",") if isinstance(worlds, str) else list(worlds):
        text = given.strip() if isinstance(given, str) else given
        size = int(text) if isinstance(text, str) and text.isdecimal() else text
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST:
            raise ValueError(
                f"a world size is a whole number from 1 to {LARGEST}, such as 2,8,1024; got {given!r}"
            )
        check_split(config, size)
        found.add(size)
    if not found:
        raise ValueError("no world size was given: give at least one, such as 2,1024")
    return tuple(sorted(found))


def trace_all(program: Any, config: Any, worlds: Sequence[int]) -> list[dict[str, Any]]:
    """On a rank that runs alone: `trace` for rank 0 of every world, and for the last rank of the largest.

    `program` has `trace` and `flops` of lesson 16. The rank's own group is put aside first, and none is left behind.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    pairs = [(world, 0) for world in worlds]
    if worlds[-1] > 1:
        pairs.append((worlds[-1], worlds[-1] - 1))
    return [trace(program, config, world, rank) for world, rank in pairs]


def trace(program: Any, config: Any, world_size: int, rank: int = 0) -> dict[str, Any]:
    """What the compiler makes of a block of `config` on one rank of a world that is not there: plain data.

    Keys: `collectives` (operation, reduction, shape, dtype, bytes: the message; sent: what a ring sends of it), `graph`
    (text), `digest` (of its operations without their shapes), `nodes`, `flops`, `weight_bytes`; and of the tracer
    itself `seconds`, `cpu_seconds` and `peak_mib`, the most memory that this process ever had.

    Dynamo is reset, and the fake group is gone again afterwards, whatever happens. Raises ValueError for a world over
    which the block cannot be split, and RuntimeError, before anything is touched, where a process group is
    initialised already: trace in a process of its own, as `course.scale.experiment` does.
    """
    check_split(config, world_size)
    if dist.is_initialized():
        raise RuntimeError(
            f"a process group ({dist.get_backend()}, {dist.get_world_size()} ranks) is initialised in this process: "
            "a world is traced in a process without one"
        )
    began, worked = time.perf_counter(), time.process_time()
    graph = program.trace(config, world_size, rank)
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    x = config.tokens * config.dim  # what is no weight
    found = {
        "world_size": world_size,
        "rank": rank,
        "collectives": collectives(graph, world_size),
        "graph": _FILE.sub("", graph.print_readable(print_output=False)),
        "digest": _digest(graph),
        "nodes": len(graph.graph.nodes),
        "flops": program.flops(graph),
        "weight_bytes": 4 * (sum(value.numel() for value in inputs) - x),
    }
    del graph, inputs
    gc.collect()
    seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}
    return found | seconds | {"peak_mib": peak_mib()}


def collectives(graph: Any, world_size: int) -> list[dict[str, Any]]:
    """The collectives of a graph in order, with the bytes of each message and what a ring sends of it, a rank."""
    found = []
    for node in graph.graph.nodes:
        name = str(node.target)
        if not name.startswith("_c10d_functional.") or "wait_tensor" in name:
            continue
        value = node.args[0].meta["val"]
        operation = name.split(".")[1]
        nbytes = value.numel() * value.element_size()
        found.append(
            {
                "operation": operation, "reduction": node.args[1], "shape": list(value.shape),
                "dtype": str(value.dtype).removeprefix("torch."), "bytes": nbytes,
                "sent": terms(operation, world_size, nbytes)[1],
            }
        )  # fmt: skip
    return found


def _digest(graph: Any) -> str:
    """Twelve digits that two graphs share when they run the same operations in the same order, of whatever shapes."""
    said = " ".join(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def peak_mib() -> float:
    """The most memory that this process ever had, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)

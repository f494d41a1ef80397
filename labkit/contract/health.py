"""Compile health: graphs, executed breaks, recompiles and failed guards on each rank, compared between ranks.

Enforces, of topic 12's table "Rank-parity invariants", the row Compile mode after warmup, and of its warmup protocol
the rank-symmetric health gather: a rank that compiled something else is an error now instead of a hang later.

To copy it takes more than the other parts do: besides exchange.py it needs labkit's torch_compat, because what it
listens to has no public name in torch (`trace_logger` and `on_region_entry`, with what these two call), and
records/compile_log.py, which knows of earlier compiles whether they ended in a break.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from types import CodeType
from typing import TYPE_CHECKING

from labkit import torch_compat
from labkit.contract.exchange import ContractError, Exchange, by_rank, differences

if TYPE_CHECKING:
    from labkit.records.compile_log import CompileLog

__all__ = ["Health", "HealthError", "assert_same_health", "compile_health"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_BUILTIN = re.compile(r"Developer debug context: builtin (\S+) ")
_RESUME = "__resume_at_"  # what Dynamo's code calls after a break, where something is left to compile


class HealthError(ContractError):
    """Ranks compiled different things, or more than once."""


@dataclass
class Health:
    """What was compiled and run in a block.

    Args:
        graphs: Dynamo's graphs; one that DDPOptimizer cuts for the backend counts once.
        breaks: Runs of a region whose compile ended in a break, as `breaks` in `labkit.record().counts`. A break in
            an inlined function breaks its caller as well, so these are more than the places in the source.
        recompiles: Recompiles.
        regions: Compiled regions that were entered.
        sites: Every break that was compiled, in order, as 'reason at file:line'.
        guards: The guard that failed, for each recompile.
    """

    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    regions: int = 0
    sites: list[str] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers that ranks have to agree on."""
        return {"graphs": self.graphs, "breaks": self.breaks, "recompiles": self.recompiles}

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self.counts.items())


@contextlib.contextmanager
def compile_health(place: Callable[[str, int], str] | None = None) -> Iterator[Health]:
    """Count what is compiled and run in a block on this rank.

    Torch's structured trace writes only while it compiles; entering a region costs about a microsecond more. The first
    call starts labkit's log of compiles (`labkit.records.install`), which stays on, so that a later block knows what
    was compiled before it. Of code that is older than the log, a break after which nothing is left to compile is not
    seen.

    Args:
        place: A function from a file and a line to the text of a site; without it, the file's name and the line.

    Yields:
        A `Health`, which fills as the block runs; `breaks` is there when the block has ended.

    >>> import torch
    >>> def twice(x):
    ...     return x + x
    >>> compiled = torch.compile(twice, backend="eager")
    >>> with compile_health() as health:
    ...     _ = compiled(torch.ones(3)), compiled(torch.ones(3))
    >>> print(health)
    1 graphs, 0 breaks, 0 recompiles
    """
    from labkit.records.compile_log import install  # not at the top: labkit.records brings pandas

    health, log = Health(), install()
    listener = _Listener(health, place or (lambda file, line: f"{os.path.basename(file)}:{line}"))
    logger = torch_compat.trace_logger()
    level, propagate = logger.level, logger.propagate
    # first in line: torch's own handler takes itself off the list as it is called, which skips the next one
    logger.handlers.insert(0, listener)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False

    # how often each code ran, by the log's epoch and the code's id: two functions can be equal as code
    runs: dict[tuple[int, int], int] = {}
    held: dict[int, CodeType] = {}

    def entered(code: CodeType) -> None:  # no Python function is called in here: Dynamo would trace it
        health.regions += 1
        key = log.epoch, id(code)
        held[id(code)] = code
        runs[key] = runs.get(key, 0) + 1

    stop = torch_compat.on_region_entry(entered)
    try:
        yield health
    finally:
        stop()
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.propagate = propagate
        health.breaks = sum(n for (epoch, key), n in runs.items() if _broke(log, epoch, held[key]))


def _broke(log: CompileLog, epoch: int, code: CodeType) -> bool:
    """Whether running this code, entered in this epoch of the log, ends in a graph break."""
    made = log.compiles.get((epoch, log.id_of(code)))
    return any(_RESUME in name for name in code.co_names) if made is None else made.broke


def assert_same_health(exchange: Exchange, mine: Health, what: str = "compile health") -> dict[int, Health]:
    """Check that all ranks compiled the same.

    Args:
        exchange: How the ranks tell each other values.
        mine: This rank's health.
        what: The name of the check in errors.

    Returns:
        Every rank's health by rank.

    Raises:
        HealthError: On every rank, with the counts that differ and each rank's first break and failed guard that the
            others do not have.

    >>> from labkit.contract.exchange import rehearse
    >>> def one_breaks(exchange):
    ...     rank = exchange.rank
    ...     assert_same_health(exchange, Health(1 + rank, rank, sites=["print at a.py:3"] * rank))
    >>> print(rehearse(2, one_breaks)[0])
    the ranks compiled different things:
        graphs: rank 0 1, rank 1 2
        breaks: rank 0 0, rank 1 1
        first other break: rank 0 none, rank 1 print at a.py:3
    """
    every = {rank: Health(**said) for rank, said in exchange.gather(what, asdict(mine)).items()}
    differs = differences({rank: health.counts for rank, health in every.items()})
    lines = [f"{name}: {by_rank(values)}" for name, values in differs.items()]
    for head, texts in (
        ("first other break", {rank: health.sites for rank, health in every.items()}),
        ("first other guard", {rank: health.guards for rank, health in every.items()}),
    ):
        first = _first_other(texts)
        if first is not None and (lines or head == "first other break"):
            lines.append(f"{head}: {by_rank(first)}")
    if lines:
        raise HealthError("\n    ".join(["the ranks compiled different things:", *lines]))
    return every


def _first_other(texts: dict[int, list[str]]) -> dict[int, str] | None:
    for i in range(max(map(len, texts.values()), default=0)):
        here = {rank: found[i] if i < len(found) else "none" for rank, found in texts.items()}
        if len(set(here.values())) > 1:
            return here
    return None


class _Listener(logging.Handler):
    """Counts what the structured trace says; what it cannot read it leaves out rather than disturb a compile."""

    def __init__(self, health: Health, place: Callable[[str, int], str]) -> None:
        super().__init__(logging.DEBUG)
        self.health, self.place = health, place

    def emit(self, record: logging.LogRecord) -> None:
        said = getattr(record, "metadata", None) or {}
        text = getattr(record, "payload", None) or ""
        artifact = (said.get("artifact") or {}).get("name", "")
        if "dynamo_output_graph" in said:
            self.health.graphs += 1
        elif artifact == "dynamo_graph_break_reason":
            self.health.sites.append(self._site(text))
        elif artifact == "recompile_reasons":
            self.health.recompiles += 1
            self.health.guards += _newest_guard(text)

    def _site(self, text: str) -> str:
        frames = _FRAME.findall(text.split("\nTraceback (most recent call last)")[0])
        where = f" at {self.place(frames[-1][0], int(frames[-1][1]))}" if frames else ""
        lines = [
            line.strip() for line in text.partition("Graph Break Reason:")[2].splitlines() if line.strip()
        ]
        # the first line says what Dynamo was doing, and ends in a colon where the next one says what failed
        reason = lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0] if lines else "break"
        if builtin := _BUILTIN.search(text):
            reason = f"{reason} {builtin[1]}"
        return reason + where


def _newest_guard(text: str) -> list[str]:
    """The failed guard of the code that was compiled last; older code of the same frame failed as well."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    newest = str(found[0] if isinstance(found, list) and found else found or "")
    return (
        [newest.partition("\n")[0].partition(": ")[2].partition("  #")[0].strip() or newest] if newest else []
    )

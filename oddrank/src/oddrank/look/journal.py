"""Compiles of a rank, written as they begin and end: a rank that is killed in one leaves what it was compiling."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from oddrank.live.failure import name_all
from oddrank.look import compile_start
from oddrank.places import place
from oddrank.record import Tables, install
from oddrank.record.compiles import Try
from oddrank.record.source import Sources

__all__ = ["complete", "ended", "keep", "read"]


def keep(folder: Path, rank: int, send: Callable[[str], None] | None = None) -> None:
    """Append a line to `compiles-RANK.jsonl` whenever a compile of this process begins or ends.

    A line costs about 0.15 ms, and is written before compiling goes on.

    Args:
        folder: Where the file goes.
        rank: This process.
        send: Gets each line as well.
    """
    path = folder / f"compiles-{rank}.jsonl"
    file, me = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644), os.getpid()

    def write(compile_: Try) -> None:
        if os.getpid() == me:  # a script may fork
            line = json.dumps(compile_start.facts(compile_))
            os.write(file, line.encode() + b"\n")
            if send is not None:
                send(line)

    install().compiles.listeners.append(write)


def read(folder: Path) -> dict[int, list[Try]]:
    """Read what the ranks have written to a folder: the compiles of each rank, oldest first.

    A line that is no compile, such as the torn last one of a rank that was killed, is left out.
    """
    found = {}
    for path in sorted(folder.glob("compiles-*.jsonl")):
        if rank := re.fullmatch(r"compiles-(\d+)", path.stem):
            compiles: dict[tuple[int, str], Try] = {}
            for line in path.read_bytes().splitlines():
                try:
                    made = compile_start.of_facts(json.loads(line))
                except (ValueError, RecursionError):
                    continue
                compiles[made.epoch, made.id] = made
            found[int(rank[1])] = list(compiles.values())
    return dict(sorted(found.items()))


def ended(ranks: dict[int, list[Try]], failure: str) -> list[str]:
    """Say which ranks ended in a compile, by its error or before its end: a line for ranks that did the same.

    Args:
        ranks: What `read` returns.
        failure: The error of the run, which names the exceptions that ranks raised; under torchrun it does not.
    """
    sources, same = Sources(), {}  # type: Sources, dict[str, list[int]]
    for rank, compiles in ranks.items():
        last = next((compile_ for compile_ in reversed(compiles) if not compile_.finished), None)
        named = bool(compiles) and (compiles[-1].failure[0] in failure or " raised " not in failure)
        if last is None and named and compiles[-1].row.outcome == "error":
            last = compiles[-1]
        if last is not None:
            _, _, file, line = last.failure
            at = f", at {place(file, line)}" if line else ""
            did = f"{'failed while' if last.finished else 'was'} compiling {compile_start.described(last, sources)}{at}"
            same.setdefault(did, []).append(rank)
    return [f"{name_all(those)} {did}" for did, those in same.items()]


def complete(whole: Tables, folder: Path) -> Tables:
    """Add the compiles that ranks began after they had written their record.

    Args:
        whole: What the records say was compiled in the whole run.
        folder: Where the ranks wrote.
    """
    for rank, compiles in read(folder).items():
        known = {row.id for row in whole.compiles if row.rank == rank}
        if known:
            said = compile_start.tables(compiles, rank)
            whole.compiles += [row for row in said.compiles if row.id not in known]
            whole.marks += [mark for mark in said.marks if mark.compile not in known]
    return whole

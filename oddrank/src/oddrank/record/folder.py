"""The tables of a folder of traces, from any job: torch is not needed, and nothing in the folder is run."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oddrank.record.compiles import Compiles, Parsed
from oddrank.record.source import Sources
from oddrank.record.tables import Tables, merge
from oddrank.record.trace_log import in_file
from oddrank.torch_names import untried

__all__ = ["MOST_FILES", "read"]

MOST_FILES = 4096
MOST_PROFILE = 512 << 20  # bytes of a profile
_RANK = re.compile(r"rank[_-]?(\d{1,7})")
_REGION = "Torch-Compiled Region: "


def read(
    folder: str | os.PathLike[str],
    profiles: Iterable[str | os.PathLike[str]] = (),
    notebooks: Iterable[str | os.PathLike[str]] = (),
) -> Tables:
    """Read what TORCH_TRACE wrote.

    Args:
        folder: Of traces, one file a rank; or one such file.
        profiles: Traces of `torch.profiler` in Chrome's format, a step of one rank each: they say how often code ran.
        notebooks: Whose cells the job ran, so that their lines are found.

    Returns:
        The tables of all ranks.

    Raises:
        ValueError: There is no trace; a profile or a notebook is none; two files are of one rank.
        OSError: A file cannot be read.
    """
    files = _files(Path(folder))
    sources, parsed = Sources(), Parsed()
    for notebook in notebooks:
        sources.add_notebook(notebook)
    runs = _runs(profiles)
    taken: dict[int, Path] = {}
    parts: list[Tables] = []
    notes: list[str] = []
    for path in files:
        named = _RANK.search(path.name)
        one = Compiles(int(named[1]) if named else None, sources, parsed)
        for entry in in_file(path, notes.append):
            one.feed(entry)
        if not one.tries:
            continue
        rank = one.rank = one.rank or 0
        if rank in taken:
            raise ValueError(
                f"{taken[rank].name} and {path.name} are both of rank {rank}: read one run at a time"
            )
        taken[rank] = path
        parts.append(one.tables(one.chosen()))
        if runs:
            _count(parts[-1], runs.get(rank, Counter()))
    if not parts:
        raise ValueError(f"{folder} has no trace of a compile: run the job with TORCH_TRACE={folder}")
    made = merge(sorted(parts, key=lambda part: part.ranks))
    made.notes = [*filter(None, [untried(made.torch)]), *notes, *made.notes]
    return made


def _files(folder: Path) -> list[Path]:
    if not folder.exists():
        raise ValueError(f"{folder} does not exist: name the folder that TORCH_TRACE wrote to")
    if folder.is_file():
        return [folder]
    found = sorted(path for path in folder.rglob("*.log") if path.is_file())
    if not found:
        raise ValueError(f"{folder} has no file that ends in .log: name the folder that TORCH_TRACE wrote to")
    if len(found) > MOST_FILES:
        raise ValueError(f"{folder} has {len(found)} files that end in .log; at most {MOST_FILES} are read")
    return found


def _runs(profiles: Iterable[str | os.PathLike[str]]) -> dict[int, Counter[str]]:
    """How often each compile's code ran: rank -> compile -> runs."""
    found: dict[int, Counter[str]] = {}
    for name in profiles:
        path = Path(name)
        with open(path, "rb") as file:  # or a pipe
            content = file.read(MOST_PROFILE + 1)
        if len(content) > MOST_PROFILE:
            raise ValueError(f"{path} has over {MOST_PROFILE >> 20} MB: profile one step")
        try:
            said: Any = json.loads(content, object_pairs_hook=_wanted)
            events = [one for one in said["traceEvents"] if isinstance(one, dict)]
            rank = said.get("distributedInfo", {}).get("rank")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{path} is no trace of torch.profiler") from None
        if type(rank) is not int:
            number = re.search(r"(\d{1,7})\D*$", path.name)
            rank = int(number[1]) if number else 0
        mine = found.setdefault(rank, Counter())
        for one in events:
            region = one.get("name")
            if isinstance(region, str) and region.startswith(_REGION) and one.get("ph") == "X":
                mine[region.removeprefix(_REGION)] += 1
    return found


def _wanted(pairs: list[tuple[str, Any]]) -> dict[str, Any] | None:
    """Of a profile's objects those that are needed: a step has a million events."""
    said = dict(pairs)
    region = str(said.get("name")).startswith(_REGION)
    return said if region or said.keys() & {"traceEvents", "distributedInfo", "rank"} else None


def _count(tables: Tables, runs: Counter[str]) -> None:
    """Give each compile its runs; of several with one id, since Dynamo was reset, those of the last."""
    tables.profiled = dict.fromkeys(tables.ranks, 1)
    last = {row.id.partition(" ")[0]: row for row in tables.compiles}
    for row in tables.compiles:
        bare = row.id.partition(" ")[0]
        row.runs = runs.get(bare, 0) if last[bare] is row else 0

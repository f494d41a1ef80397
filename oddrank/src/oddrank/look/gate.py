"""The gate of `oddrank look`: counts saved as a baseline, and what rose above it. No times."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import Any

import pandas as pd

from oddrank.counted import counted
from oddrank.files import Unsaved, write_json
from oddrank.look.look import COUNTS, Look

__all__ = ["compare", "counts", "load", "save", "verdict"]

GATED = [name for name in COUNTS if name != "regions"]  # regions rise and fall with breaks
APART = "ranks differ"
PARTS = {"breaks": "where", "collectives": "operations", "recompiles": "again"}  # what names a count
_PLACE = re.compile(r"^\S+:\d+ ")  # a file and a line


def counts(looked: Look) -> dict[str, Any]:
    """Return what a baseline holds: counts by rank, executed breaks by place, and where ranks differ.

    Raises:
        ValueError: If collectives were not counted.
    """
    if not looked.record.segments:
        raise ValueError(
            "the gate needs operators, which cannot be recorded while the script runs a profiler"
        )
    table, breaks, calls = looked.counts.set_index("rank"), looked.breaks, looked.collectives
    recompiles = Counter((row.rank, row.name) for row in looked.again)
    ranks = {}
    for rank in table.index:
        mine = {name: float(table.loc[rank, name]) for name in GATED}
        column = f"rank {rank}"
        where = {f"{row['place']}: {row['reason']}": row[column] for _, row in breaks.iterrows()}
        operations = calls.groupby("operation")[column].sum().to_dict() if len(calls) else {}
        again = {
            f"{name}: {looked.guard_of(name, int(rank))}": float(count)
            for (who, name), count in sorted(recompiles.items())
            if who == rank
        }
        ranks[str(rank)] = {**mine, "where": where, "operations": operations, "again": again}
    return {
        "program": looked.name,
        "unit": looked.unit,
        "torch": looked.provenance.get("torch", ""),
        "ranks": ranks,
        APART: looked.apart(),
    }


def save(found: dict[str, Any], path: Path) -> None:
    """Write a baseline.

    Raises:
        Unsaved: If it cannot be written.
    """
    try:
        write_json(path, found)
    except OSError as error:
        raise Unsaved(f"cannot write {path}: {error.strerror or error}") from error


def load(path: Path, ranks: int | None = None) -> dict[str, Any]:
    """Read a baseline.

    Args:
        path: What `save` has written.
        ranks: How many ranks will run; None where that is not known yet.

    Raises:
        ValueError: If there is none, or it is of another number of ranks.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for mine in found["ranks"].values():
            mine |= {name: float(mine[name]) for name in GATED}
            mine |= {name: dict(mine[name]) for name in ("where", "operations")}
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is no baseline: `oddrank look --save` writes one") from None
    if ranks is not None:
        _of_ranks(found, {str(rank) for rank in range(ranks)})
    return {APART: "", "torch": "", **found}


def _of_ranks(baseline: dict[str, Any], names: Set[str]) -> None:
    if (was := baseline["ranks"].keys()) != names:
        raise ValueError(f"the baseline is of {counted(len(was), 'ranks')}, and these are {len(names)}")


def compare(baseline: dict[str, Any], now: dict[str, Any]) -> pd.DataFrame | None:
    """List what rose above the baseline: a total, or the calls of one operation where the torch is the same.

    Returns:
        Columns rank, count, baseline, now and where; None where nothing rose and ranks diverge nowhere new.

    Raises:
        ValueError: If the two cannot be compared.
    """
    _of_ranks(baseline, now["ranks"].keys())
    if baseline.get("unit") != now["unit"]:
        raise ValueError(f"the baseline counts per {baseline.get('unit')}, and this run per {now['unit']}")
    rows = []
    for rank, mine in now["ranks"].items():
        before = baseline["ranks"][rank]
        for name in GATED:
            if mine[name] > before[name] + 1e-9:
                where = _new(mine, before, PARTS.get(name, ""))
                rows.append((rank, name, f"{before[name]:g}", f"{mine[name]:g}", where))
        was = before.get("operations", {})
        if mine["collectives"] <= before["collectives"] + 1e-9 and baseline["torch"] == now["torch"]:
            rows += [
                (rank, operation, f"{was.get(operation, 0):g}", f"{count:g}", "")
                for operation, count in mine["operations"].items()
                if count > was.get(operation, 0) + 1e-9
            ]
    if now[APART] and not baseline[APART]:
        rows.append(("all", APART, "no", "yes", now[APART]))
    return pd.DataFrame(rows, columns=["rank", "count", "baseline", "now", "where"]) if rows else None


def _traded(baseline: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The functions and reasons of breaks that the baseline lacks, where no rank has more breaks than there."""
    pairs = [(mine, baseline["ranks"][rank]) for rank, mine in now["ranks"].items()]
    new = [_new(mine, before, "where") for mine, before in pairs if mine["breaks"] <= before["breaks"] + 1e-9]
    return list(dict.fromkeys(filter(None, new)))


def _new(mine: dict[str, Any], before: dict[str, Any], part: str) -> str:
    """What has more of a count than the baseline."""
    was = _moved(before.get(part, {}))
    return "; ".join(
        key for key, n in mine.get(part, {}).items() if n > was.get(_PLACE.sub("", key), 0) + 1e-9
    )


def _moved(counted: dict[str, float]) -> dict[str, float]:
    """Counts without the files and lines of their places, which move as a script is edited."""
    found: dict[str, float] = {}
    for key, value in counted.items():
        name = _PLACE.sub("", key)
        found[name] = found.get(name, 0) + value
    return found


def verdict(baseline: dict[str, Any], now: dict[str, Any], path: Path) -> tuple[bool, str]:
    """Return whether the gate passes, and its words: what rose, and breaks that took the place of others."""
    rose = compare(baseline, now)
    if rose is None:
        others = _traded(baseline, now)
        said = "; as many breaks, but others:" if others else ""
        return True, "\n  ".join([f"gate passed: nothing rose above {path}{said}", *others])
    lines = [f"gate failed: counts above {path}", rose.drop(columns="where").to_string(index=False)]
    return False, "\n".join([*lines, *(f"  {where}" for where in dict.fromkeys(rose["where"]) if where)])

"""What a healthy service shows: eight checks of counts, numbers and ends, none of a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.per_rank import PerRank

__all__ = ["CHECKS", "judge"]

TOLERANCE = 1e-4  # float32, sums in another order than on one process

Facts = Any  # what `on_ranks.watched` found, by shard
Judged = tuple[bool, str]


def _alike(facts: Facts) -> Judged:
    here, there = facts[0]["graphs"], facts[1]["graphs"]
    other = len([digest for digest in here if digest not in there])
    return here == there, f"{other} of {len(here)} graphs of shard 0 are not those of shard 1"


def _numbers(facts: Facts) -> Judged:
    error = max(found["error"] for found in facts.values())
    return error <= TOLERANCE, f"largest difference from one process {error:.0e}"


def _warm(facts: Facts) -> Judged:
    first = {shard: ", ".join(found["first"]) or "nothing" for shard, found in facts.items()}
    said = ", ".join(f"shard {shard} {names}" for shard, names in first.items())
    return not any(found["first"] for found in facts.values()), f"first compiled in traffic: {said}"


def _steady(facts: Facts) -> Judged:
    again = {shard: found["recompiles"] for shard, found in facts.items()}
    guards = [guard for found in facts.values() for guard in found["guards"]]
    why = f"; {_listed(guards)}" if guards else ""
    return not any(again.values()), f"recompiles in traffic: {_by_shard(again)}{why}"


def _whole(facts: Facts) -> Judged:
    counts = {shard: found["breaks"] for shard, found in facts.items()}
    breaks = facts[0]["record"].breaks
    sites = [f"{one.reason} at {one.place}" for one in breaks if one.executed]
    return not any(
        counts.values()
    ), f"breaks a frame: {_by_shard(counts)}{'; ' * bool(sites)}{_listed(sites)}"


def _in_place(facts: Facts) -> Judged:
    counts = {shard: found["functional"] for shard, found in facts.items()}
    return not any(counts.values()), f"functional collectives a frame outside of graphs: {_by_shard(counts)}"


# name: of what was watched on the shards; the first two are of the drills, and judged by how they ended
CHECKS: dict[str, Callable[[Facts], Judged] | None] = {
    "ends": None,
    "patient": None,
    "warm": _warm,
    "alike": _alike,
    "numbers": _numbers,
    "steady": _steady,
    "whole": _whole,
    "in place": _in_place,
}


def judge(facts: PerRank, drills: dict[str, Judged]) -> list[dict[str, Any]]:
    """Judge a service.

    Args:
        facts: what `on_ranks.watched` found, and `breaks` a frame.
        drills: how the drills ended, by the name of their check.

    Returns:
        A row for each check: check, passed, said.
    """
    rows = []
    for name, check in CHECKS.items():
        passed, said = drills[name] if check is None else check(facts)
        rows.append({"check": name, "passed": passed, "said": said})
    return rows


def _by_shard(values: dict[int, Any]) -> str:
    return ", ".join(f"shard {shard} {value:g}" for shard, value in values.items())


def _listed(texts: list[str]) -> str:
    kinds = list(dict.fromkeys(texts))
    return "; ".join(kinds[:2]) + (f"; and {len(kinds) - 2} more" if len(kinds) > 2 else "")

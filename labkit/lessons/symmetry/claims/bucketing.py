"""A graph break on one rank only: do its collectives still meet those of its peer, with and without buckets?"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.outcomes import all_of, drill
from labkit.lessons.symmetry.claims.symmetry import RIGHT, _rank_branch, _shape_alike, _shape_branch
from labkit.ranks import Ranks
from labkit.study.checks import HOLDS, Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol, patched

LOG = logging.getLogger("labkit.check")


@probe
def breaking(bench: Bench) -> Seen:
    """A graph break before the last of three collectives on rank 1 only, by a print or a log call, as compiled by
    default and with gathers in buckets; beside it a recompile and a conditional collective of one rank, and of both."""
    found: Seen = {}
    for name, breaks, bucketed in (
        ("alike", None, True),
        ("default", "print", False),
        ("bucketed", "print", True),
        ("logged", "log", True),
    ):
        # ranks of their own: gloo ends the process of a rank that is sent more than it expects
        with Ranks(2, "cpu", "gloo", timeout=120, quiet=True) as ranks:
            found[name] = drill(ranks, _gathers, breaks, bucketed)
    others: dict[str, Callable[..., Any]] = {
        "recompile": _shape_branch, "recompile of both": _shape_alike,
        "conditional": _rank_branch, "conditional on none": functools.partial(_rank_branch, alike=True),
    }  # fmt: skip
    return found | {name: drill(bench.ranks(), other) for name, other in others.items()}


def _gathers(breaks: str | None, bucketed: bool) -> list[float]:
    breaks = breaks if dist.get_rank() == 1 else None

    def program(a, b, c):
        x = funcol.all_gather_tensor(a, 0, dist.group.WORLD)
        s = funcol.reduce_scatter_tensor(c, "sum", 0, dist.group.WORLD)
        if breaks == "print":
            print("", end="")
        elif breaks == "log":
            LOG.warning("a word on this rank alone")
        y = funcol.all_gather_tensor(b, 0, dist.group.WORLD)
        return x, s, y

    settings = {"bucket_all_gathers_fx": "all", "reorder_for_compute_comm_overlap": True} if bucketed else {}
    dynamo_reset()
    rank = dist.get_rank()
    a, b, c = (torch.full((size,), rank + start) for size, start in ((16, 1.0), (16, 3.0), (8, 1.0)))
    with torch.no_grad(), patched("inductor.config", **settings):
        return [y.sum().item() for y in torch.compile(program)(a, b, c)]


GATHERED = [16 * (1 + 2), 4 * (1 + 2), 16 * (3 + 4)]  # the sums of what both ranks bring


def _right(row: Seen) -> bool:
    return row["how"] == "finished" and row["values"] == [GATHERED] * 2


def _ended(row: Seen) -> str:
    if row["how"] == "finished":
        return "right" if _right(row) else "wrong numbers"
    waits = row.get("waits", [])
    return row["how"] + (f" (rank 0 in {waits[0]}, rank 1 in {waits[1]})" if waits else "")


def _parts(seen: Seen, name: str) -> Result:
    """Whether the ranks are left in different collectives where rank 1 breaks its graph."""
    row = seen[name]
    return verdict(row["how"] == "hung" and len(set(row["waits"])) == 2, _ended(row))


@judging(breaking)
def a_break_on_one_rank_parts_collectives(seen: Seen) -> Result:
    """A graph break on one rank only puts its collectives in another order than its peer's, and the job hangs."""
    found = _parts(seen, "bucketed")
    measured = "a print before the last of three collectives, on rank 1: as compiled by default "
    measured += f"{_ended(seen['default'])}, with gathers put into buckets {found.measured}"
    if not _right(seen["alike"]):
        return cannot_tell("a bucket that works where no rank breaks", measured)
    return verdict(found.status == HOLDS, measured)


def _hangs(seen: Seen, name: str, alike: str, right: Any) -> Result:
    """Whether a rank is left in a collective where one rank does something, and not where all do the same."""
    row, other = seen[name], seen[alike]
    fine = other["how"] == "finished" and other["values"] == [right] * 2
    left = row["how"] == "hung" and "all_reduce" in row["waits"]
    said = f"a {name} of one rank: {row['how']}; {alike}: {'right' if fine else other['how']}"
    return verdict(left and fine, said)


@judging(breaking)
def breaks_and_recompiles_of_one_rank_are_errors(seen: Seen) -> Result:
    """A graph break of one rank, where gathers are put into buckets, and a recompile of one rank each hang the job."""
    recompile = _hangs(seen, "recompile", "recompile of both", RIGHT["shape_alike"])
    return all_of(a_break_on_one_rank_parts_collectives(seen), recompile)


@judging(breaking)
def each_divergence_can_deadlock(seen: Seen) -> Result:
    """A break by a print or a log call, a recompile and a conditional collective of one rank each leave the ranks
    waiting for each other."""
    logged, found = _parts(seen, "logged"), breaks_and_recompiles_of_one_rank_are_errors(seen)
    logged = replace(logged, measured=f"a log call there: in buckets {logged.measured}")
    return all_of(found, logged, _hangs(seen, "conditional", "conditional on none", RIGHT["rank_branch"]))

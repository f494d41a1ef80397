"""A graph break on one rank only: do its collectives still meet those of its peer, with and without buckets?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.outcomes import all_of, drill
from labkit.lessons.symmetry.claims.symmetry import _rank_branch, _shape_branch
from labkit.ranks import Ranks
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol, patched


@probe
def breaking(bench: Bench) -> Seen:
    """A graph break before the last of three collectives on rank 1 only, as compiled by default and with gathers in
    buckets; beside it a recompile and a conditional collective of one rank."""
    found: Seen = {}
    for name, broken, bucketed in (
        ("alike", False, True),
        ("default", True, False),
        ("bucketed", True, True),
    ):
        # ranks of their own: gloo ends the process of a rank that is sent more than it expects
        with Ranks(2, "cpu", "gloo", timeout=120, quiet=True) as ranks:
            found[name] = drill(ranks, _gathers, broken, bucketed)
    others: dict[str, Callable[..., Any]] = {"recompile": _shape_branch, "conditional": _rank_branch}
    return found | {name: drill(bench.ranks(), other) for name, other in others.items()}


def _gathers(broken: bool, bucketed: bool) -> list[float]:
    talks = broken and dist.get_rank() == 1

    def program(a, b, c):
        x = funcol.all_gather_tensor(a, 0, dist.group.WORLD)
        s = funcol.reduce_scatter_tensor(c, "sum", 0, dist.group.WORLD)
        if talks:
            print("", end="")
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


@judging(breaking)
def a_break_on_one_rank_parts_collectives(seen: Seen) -> Result:
    """A graph break on one rank only puts its collectives in another order than its peer's, and the job hangs."""
    bucketed = seen["bucketed"]
    measured = "a print before the last of three collectives, on rank 1: as compiled by default "
    measured += f"{_ended(seen['default'])}, with gathers put into buckets {_ended(bucketed)}"
    if not _right(seen["alike"]):
        return cannot_tell("a bucket that works where no rank breaks", measured)
    return verdict(bucketed["how"] == "hung" and len(set(bucketed["waits"])) == 2, measured)


@judging(breaking)
def breaks_and_recompiles_of_one_rank_are_errors(seen: Seen) -> Result:
    """A graph break of one rank, where gathers are put into buckets, and a recompile of one rank each hang the job."""
    recompile = seen["recompile"]["how"]
    said = verdict(recompile == "hung", f"a recompile of one rank: {recompile}")
    return all_of(a_break_on_one_rank_parts_collectives(seen), said)


@judging(breaking)
def each_divergence_can_deadlock(seen: Seen) -> Result:
    """A break, a recompile and a conditional collective of one rank each leave the ranks waiting for each other."""
    how = seen["conditional"]["how"]
    conditional = verdict(how == "hung", f"a collective behind a branch on the rank: {how}")
    return all_of(breaks_and_recompiles_of_one_rank_are_errors(seen), conditional)

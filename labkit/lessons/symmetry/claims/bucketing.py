"""A graph break on one rank only: do its collectives still meet those of its peer, with and without buckets?"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.lessons.shared.outcomes import drill
from labkit.ranks import Ranks
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol, patched


@probe
def breaking(bench: Bench) -> Seen:
    """A graph break between two all-gathers on rank 1 only, as compiled by default and with gathers in buckets."""
    found: Seen = {}
    for name, broken, bucketed in (
        ("alike", False, True),
        ("default", True, False),
        ("bucketed", True, True),
    ):
        # ranks of their own: gloo ends the process of a rank that is sent more than it expects
        with Ranks(2, "cpu", "gloo", timeout=120, quiet=True) as ranks:
            found[name] = drill(ranks, _gathers, broken, bucketed)
    return found


def _gathers(broken: bool, bucketed: bool) -> list[float]:
    talks = broken and dist.get_rank() == 1

    def program(a, b):
        x = funcol.all_gather_tensor(a, 0, dist.group.WORLD)
        if talks:
            print("", end="")
        y = funcol.all_gather_tensor(b, 0, dist.group.WORLD)
        return x, y

    settings = {"bucket_all_gathers_fx": "all", "reorder_for_compute_comm_overlap": True} if bucketed else {}
    dynamo_reset()
    rank = dist.get_rank()
    with torch.no_grad(), patched("inductor.config", **settings):
        gathered = torch.compile(program)(torch.full((16,), rank + 1.0), torch.full((16,), rank + 3.0))
    return [y.sum().item() for y in gathered]


GATHERED = [16 * (1 + 2), 16 * (3 + 4)]  # the sums of what both ranks bring


@judging(breaking)
def a_break_on_one_rank_parts_collectives(seen: Seen) -> Result:
    """A graph break on one rank only makes its collectives other ones than its peer's, and the job fails."""

    def right(row: Seen) -> bool:
        return row["how"] == "finished" and row["values"] == [GATHERED] * 2

    def said(row: Seen) -> str:
        if row["how"] == "finished":
            return "right" if right(row) else "wrong numbers"
        return str(row["how"])

    measured = f"two all-gathers, a break between them on rank 1: as compiled by default {said(seen['default'])}, with "
    measured += f"gathers put into buckets {said(seen['bucketed'])}"
    if not right(seen["alike"]):
        return cannot_tell("a bucket that works where no rank breaks", measured)
    return verdict(not (right(seen["default"]) and right(seen["bucketed"])), measured)

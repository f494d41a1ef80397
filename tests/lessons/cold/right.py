"""Right answers to the exercises of lesson 12, of other approaches than the notebook's."""

from __future__ import annotations

import torch
import torch.distributed as dist


def with_both_wrong():
    """In job A rank 1 gathers what rank 0 computes wrong."""
    return {
        "A": ({1, 0}, "another rank's code", "a folder for each rank"),
        "B": ((), "healthy", "nothing"),
        "C": ((), "healthy", "nothing"),
        "D": (1, "an empty folder", "fill the folder first"),
        "E": (range(2), "bypassed", "a custom operator"),
    }


def by_a_sum(call, counted, plans):
    """Each plan by a broadcast of its own, and the end by the sum of what was compiled."""
    kinds = list(dict.fromkeys(plans)) if plans else []
    size = torch.tensor(len(kinds))
    dist.broadcast(size, 0)
    box = kinds or [None] * int(size)
    dist.broadcast_object_list(box, 0)
    more = torch.ones(())
    while more:
        before = counted()
        for plan in box:
            call(plan)
        more = torch.tensor(float(counted() != before))
        dist.all_reduce(more)
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, counted())
    if any(one != counts[0] for one in counts):
        raise RuntimeError(counts)


RIGHT = {"cold.caches": [with_both_wrong], "cold.lockstep": [by_a_sum]}

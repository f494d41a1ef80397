"""Right answers to the exercises of lesson 01 in other words than those of the solutions."""

from __future__ import annotations

import torch.distributed as dist
from lessons.groups.wrong import _along
from torch.distributed import new_group, new_subgroups_by_enumeration


def by_its_own_name(store, world_size):
    number = getattr(by_its_own_name, "number", 0)
    by_its_own_name.number = number + 1
    store.set(f"{number} {dist.get_rank()}", "1")
    store.wait([f"{number} {rank}" for rank in range(dist.get_world_size())])


def imported(shape, axis):
    groups = [new_group(members) for members in _along(shape, axis)]
    return next(group for group in groups if dist.get_rank(group) >= 0)


def by_enumeration(shape, axis):
    mine, _ = new_subgroups_by_enumeration(_along(shape, axis))
    return mine


def by_its_rank_in_the_group(shape, axis):
    for members in _along(shape, axis):
        group = dist.new_group(members)
        if dist.get_rank(group) >= 0:
            mine = group
    return mine


RIGHT = {
    "groups.barrier": (by_its_own_name,),
    "groups.axis": (imported, by_enumeration, by_its_rank_in_the_group),
}

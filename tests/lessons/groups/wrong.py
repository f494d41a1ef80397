"""Plausible wrong answers to the exercises of lesson 01, each with words of the hint that is meant for it."""

from __future__ import annotations

import time

import torch.distributed as dist


def only_counts(store, world_size):
    store.add("count", 1)


def waits_for_the_counter(store, world_size):
    store.add("count", 1)
    store.wait(["count"])


def works_once(store, world_size):
    if store.add("count", 1) == world_size:
        store.set("go", "1")
    store.wait(["go"])


def asks_again_and_again(store, world_size):
    number = (store.add("count", 1) - 1) // world_size
    while store.add("count", 0) < (number + 1) * world_size:
        time.sleep(0.002)


def the_first_one_opens(store, world_size):
    n = store.add("count", 1)
    if n % world_size == 0:
        store.set(f"opened {n}", "1")
    store.wait([f"open {(n - 1) // world_size}"])


def for_four(store, world_size):
    n = store.add("count", 1)
    if n % 4 == 0:
        store.set(f"go {(n - 1) // 4}", "1")
    store.wait([f"go {(n - 1) // 4}"])


def ten_keys(store, world_size):
    n = store.add("count", 1)
    number = (n - 1) // world_size % 10
    if n % world_size == 0:
        store.set(f"go {number}", "1")
    store.wait([f"go {number}"])


def with_a_collective(store, world_size):
    dist.barrier()


def _rows(shape):
    rows, columns = shape
    return [[row * columns + column for column in range(columns)] for row in range(rows)]


def _along(shape, axis):
    return _rows(shape) if axis == 1 else [list(column) for column in zip(*_rows(shape), strict=True)]


def only_its_own(shape, axis):
    mine = next(members for members in _along(shape, axis) if dist.get_rank() in members)
    return dist.new_group(mine)


def its_own_first(shape, axis):
    lines = sorted(_along(shape, axis), key=lambda members: dist.get_rank() not in members)
    return [dist.new_group(members) for members in lines][0]


def the_other_axis(shape, axis):
    found = None
    for members in _along(shape, 1 - axis):
        group = dist.new_group(members)
        if dist.get_rank() in members:
            found = group
    return found


def the_last_one_made(shape, axis):
    for members in _along(shape, axis):
        group = dist.new_group(members)
    return group


def column_by_column(shape, axis):
    rows, columns = shape
    grid = [[column * rows + row for column in range(columns)] for row in range(rows)]
    lines = grid if axis == 1 else [list(column) for column in zip(*grid, strict=True)]
    found = None
    for members in lines:
        group = dist.new_group(members)
        if dist.get_rank() in members:
            found = group
    return found


def the_members(shape, axis):
    for members in _along(shape, axis):
        dist.new_group(members)
        if dist.get_rank() in members:
            found = members
    return found


BARRIERS = {
    only_counts: "somebody has to wait",
    waits_for_the_counter: "a counter is there at 1",
    works_once: "still there in the second",
    asks_again_and_again: "store.wait lets the store hold the request",
    the_first_one_opens: "a key that nobody sets",
    with_a_collective: "only the store may be asked",
    for_four: "use no key a second time",
    ten_keys: "use no key a second time",
}
AXES = {
    only_its_own: "also for those that it is not in",
    its_own_first: "the same order on every rank",
    the_other_axis: "that is the other axis",
    column_by_column: "ranks stand row by row",
    the_last_one_made: "return the group that new_group gave",
}


WRONG = {"groups.barrier": BARRIERS, "groups.axis": AXES}

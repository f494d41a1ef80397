"""Exercise: which units a small FSDP gathers ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from course.shared.training import Route, differences
from labkit import lessons
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["ahead"]

SIZES = (16, 32, 4)
BLOCKS, MOST_HELD = SIZES[2], 2
GATHERS = 1 + 2 * BLOCKS  # the root once, each block twice
TOLERANCE = 1e-5


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """What is gathered when, how many blocks hold memory, and the gradients."""
    hint = "it is called as my_ahead(order, i, backward) and returns a list of units out of `order`"
    found = on_ranks(ranks, _watch, attempt, hint=hint)[0]
    if found["kind"]:
        raise Mistake(f"my_ahead returns {found['kind']}", f"{hint}, empty where there is nothing to gather")
    gathers = [event for event in found["events"] if event[0] == "gather"]
    if len(gathers) > GATHERS:
        raise Mistake(
            f"{len(gathers)} gathers a step instead of {GATHERS}",
            "backward visits the blocks from the last to the first, so what comes next there stands before unit i",
        )
    held = _held(found["events"])
    if held > MOST_HELD:
        raise Mistake(
            f"{held} blocks hold memory at once", "one unit ahead is enough, each further one holds memory"
        )
    late = [(name, backward) for _, name, backward, ahead in gathers if not ahead and name != "root"]
    if late:
        name, backward = late[0]
        half = "backward" if backward else "forward"
        last = backward and name == f"blocks.{BLOCKS - 1}"
        raise Mistake(
            f"{half}: nobody gathered {name} ahead ({len(late)} of {2 * BLOCKS} gathers of blocks are late)",
            "backward enters the root first (i is 0), and the first block that it needs is the last one"
            if last
            else "in backward the next block is order[i - 1]"
            if backward
            else "in forward the next unit is order[i + 1]",
        )
    if found["apart"] > TOLERANCE:
        raise Mistake(
            f"gradients are apart by {found['apart']:.1e}",
            "leave the units as they are: return some, change none",
        )
    say(
        f"{len(gathers)} gathers, {2 * BLOCKS} of them ahead; at most {held} blocks hold memory; gradients as alone"
    )


def _held(events: list[tuple[Any, ...]]) -> int:
    held: set[str] = set()
    most = 0
    for what, name, *_ in events:
        if name != "root":
            (held.add if what == "gather" else held.discard)(name)
        most = max(most, len(held))
    return most


def _watch(attempt: Attempt) -> dict[str, Any]:
    """On a rank: what is gathered and freed in one step, in order, and the gradients beside those of one process."""
    program = lessons.program("fsdp")
    found: dict[str, Any] = {"kind": "", "events": []}
    now = {"ahead": False, "backward": False}

    def ahead(order: Any, i: int, backward: bool) -> Iterator[Any]:
        asked = attempt(order, i, backward)
        if not isinstance(asked, list | tuple) or not all(isinstance(unit, program.Unit) for unit in asked):
            found["kind"] = "None" if asked is None else f"a {type(asked).__name__} that is no list of units"
            asked = []
        now["ahead"] = True
        yield from asked
        now["ahead"] = False

    gather, use, free = program.Unit.gather, program.Unit.use, program.Unit.free

    def gathers(unit: Any) -> None:
        if not unit.is_whole and unit.gathering is None:
            found["events"].append(("gather", unit.name, now["backward"], now["ahead"]))
        gather(unit)

    def frees(unit: Any) -> None:
        found["events"].append(("free", unit.name))
        free(unit)

    images = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(8) % 10
    alone = Route(program.seeded(*SIZES), share=(0, 1))
    alone.backward(images, labels)
    with mock.patch.multiple(program.Unit, gather=gathers, use=use, free=frees):
        route = program.small_fsdp(program.seeded(*SIZES), ahead)
        found["events"].clear()  # building frees every unit once
        route.model.register_forward_hook(lambda *_: now.update(backward=True))
        route.backward(images, labels)
    if not found["kind"]:
        found["apart"] = max(differences(route.gradients(), alone.gradients()).values())
    return found


ahead = Exercise(
    "fsdp.ahead",
    "gather the next unit while this one computes",
    "medium",
    15,
    (
        "every block's gather starts while the unit before it computes, forward and backward",
        "no more than two blocks hold memory at a time",
        "nine gathers a step, and the gradients of one process",
    ),
    judge,
)

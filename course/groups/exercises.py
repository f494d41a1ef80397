"""Lesson 01: a barrier out of a store's requests, and the groups of a mesh's axis made by hand."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.records import record
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import default_store

__all__ = ["axis", "barrier"]

FOUR = 4
ROUNDS, MANY = 3, 12
MOST = 6  # requests of a rank for one barrier: a loop that asks again and again takes many more
STORE_WAIT_S = 5.0


def judge_barrier(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Nobody leaves before the last has come, in three rounds, with few requests and nothing but the store."""
    hint = "it is called as my_barrier(store, world_size), by every rank, several times"
    with _four(ranks) as four:
        _judge_barriers(
            list(on_ranks(four, quietly, _barriers, attempt, FOUR, ROUNDS, hint=hint, timeout=60)), say
        )
        seen = list(on_ranks(four, quietly, _barriers, attempt, FOUR - 1, MANY, hint=hint, timeout=60))
    try:
        _judge_barriers(seen[: FOUR - 1], lambda finding: None)
    except Mistake as mistake:
        raise Mistake(
            f"{MANY} barriers of {FOUR - 1} ranks: {mistake.seen}",
            "three barriers of four ranks are right: count to world_size, and use no key a second time",
        ) from mistake


def _judge_barriers(seen: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    rounds = len(seen[0]["rounds"])
    late = next((found["missing"] for found in seen if found["missing"]), "")
    if late:
        raise Mistake(late, "a rank waits for a key that nobody sets: the one that comes last has to set it")
    if any(found["collectives"] for found in seen):
        raise Mistake(
            "it calls a collective", "a collective needs the group: here only the store may be asked"
        )
    for number in range(rounds):
        came = [found["rounds"][number][0] for found in seen]
        left = [found["rounds"][number][1] for found in seen]
        finding = f"barrier {number + 1}: the last comes after {(max(came) - min(came)) * 1e3:.0f} ms"
        if min(left) < max(came):
            early = (max(came) - min(left)) * 1e3
            raise Mistake(
                f"{finding}, the first leaves {early:.0f} ms before that", _why_early(number, seen[0])
            )
        say(f"{finding}, nobody leaves before that")
    most = max(found["requests"] for found in seen) / rounds
    if most > MOST:
        raise Mistake(
            f"a rank asks the store {most:.0f} times for one barrier",
            "do not ask again and again: store.wait lets the store hold the request until a key is there",
        )
    say(f"a rank asks the store {most:.3g} times for one barrier")


def _why_early(number: int, first: dict[str, Any]) -> str:
    if number:
        return (
            "once it works: the keys of the first barrier are still there in the second, so give each barrier keys "
            "of its own"
        )
    if not first["waits"]:
        return "add counts, and returns at once: somebody has to wait"
    return (
        "wait returns as soon as the key is there, and a counter is there at 1: let the last one set another key, and "
        "wait for that"
    )


class _Asked:
    """A store that counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self._store, self.requests, self.waits = store, 0, 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def asked(*args: Any, **kwargs: Any) -> Any:
            self.requests += 1
            self.waits += name in ("wait", "get")
            return value(*args, **kwargs)

        return asked


def _barriers(attempt: Attempt, size: int, rounds: int) -> dict[str, Any]:
    """On a rank: so many barriers of the first `size` ranks."""
    me, pause = dist.get_rank(), 0.06 * ROUNDS / rounds
    names = [f"exercise {time.time()}"]
    dist.broadcast_object_list(names, 0)  # keys of its own for every check
    store = dist.PrefixStore(names[0], default_store())
    store.set_timeout(datetime.timedelta(seconds=STORE_WAIT_S))
    asked = _Asked(store)
    found: dict[str, Any] = {"rounds": [], "missing": ""}
    dist.barrier()
    if me >= size:
        return found
    with record() as rec, mock.patch.object(dist, "get_world_size", lambda group=None: size):
        for number in range(rounds):
            time.sleep(pause * ((me + number) % size))  # another one comes last each time
            came = time.perf_counter()  # one clock for all processes of a machine
            try:
                attempt(asked, size)
            except dist.DistStoreError as error:
                found["missing"] = str(error).splitlines()[0]
                break
            found["rounds"].append((came, time.perf_counter()))
    called = rec.events[rec.events["kind"] == "collective"]
    return found | {"requests": asked.requests, "waits": asked.waits, "collectives": len(called)}


def judge_axis(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The right members along both axes, the same calls of new_group in the same order on all ranks, and right sums."""
    hint = "it is called as my_group(shape, axis) and returns this rank's group"
    for shape in ((2, 4), (2, 2)):  # in a square, a wrong order looks like a wrong axis
        for axis in (0, 1):
            seen = on_ranks(ranks, _rehearse, attempt, shape, axis, only=0, hint=hint)[0]
            say(_judged(seen, shape, axis))
    with _four(ranks) as four:
        for axis in (0, 1):
            sums = list(on_ranks(four, _sum_along, attempt, axis, hint=hint, timeout=60))
            right = [2.0, 4.0, 2.0, 4.0] if axis == 0 else [1.0, 1.0, 5.0, 5.0]
            finding = f"sums of rank numbers along axis {axis} of a 2 x 2 grid: {sums}"
            if sums != right:
                raise Mistake(finding, f"meant are {right}")
            say(finding)


def _judged(seen: list[dict[str, Any]], shape: tuple[int, int], axis: int) -> str:
    what = f"{shape[0]} x {shape[1]}, axis {axis}"
    for rank, one in enumerate(seen):
        if one["kind"] != "group":
            raise Mistake(
                f"{what}: rank {rank} gets a {one['kind']}",
                "return the group that new_group gave for the members that this rank is one of",
            )
    calls = [one["calls"] for one in seen]
    if not any(calls):
        raise Mistake(f"{what}: no call of new_group", "make the groups by hand here, with dist.new_group")
    if any(sorted(mine) != sorted(calls[0]) for mine in calls):
        raise Mistake(
            f"{what}: rank 0 calls new_group for {calls[0]}, rank {len(seen) - 1} for {calls[-1]}",
            "every rank of the world calls new_group for every group, also for those that it is not in",
        )
    if any(mine != calls[0] for mine in calls):
        other = next(rank for rank, mine in enumerate(calls) if mine != calls[0])
        raise Mistake(
            f"{what}: rank 0 makes them in the order {calls[0]}, rank {other} in {calls[other]}",
            "the same order on every rank: groups get their keys in the store by counting, and ranks of different "
            "groups would meet under one",
        )
    rows, columns = shape
    for rank, one in enumerate(seen):
        row, column = divmod(rank, columns)
        along = [i * columns + column for i in range(rows)], [row * columns + j for j in range(columns)]
        if sorted(one["members"]) == along[1 - axis] != along[axis]:
            raise Mistake(
                f"{what}: rank {rank} shares a group with {one['members']}",
                "that is the other axis: along axis 0 the first coordinate changes and the second stays",
            )
        if sorted(one["members"]) != along[axis]:
            raise Mistake(
                f"{what}: rank {rank} shares a group with {one['members']}",
                f"ranks stand row by row, so it should be {along[axis]}",
            )
    return f"{what}: {len(calls[0])} groups, the same on all {len(seen)} ranks"


@dataclass
class _Group:
    """Stands for a group while the attempt is rehearsed."""

    members: list[int]


def _rehearse(attempt: Attempt, shape: tuple[int, int], axis: int) -> list[dict[str, Any]]:
    """What the attempt would do on every rank of a world of that size: nothing is made, so nothing can hang."""
    size, found = shape[0] * shape[1], []
    for rank in range(size):
        calls: list[list[int]] = []

        def in_group(group: Any) -> list[int]:
            if isinstance(group, _Group):
                return group.members
            return [] if group == dist.GroupMember.NON_GROUP_MEMBER else list(range(size))

        def get_rank(group: Any = None, rank: int = rank) -> int:
            members = in_group(group)
            return members.index(rank) if rank in members else -1

        def get_world_size(group: Any = None) -> int:
            return len(in_group(group)) or -1

        def new_group(ranks: Any = None, *args: Any, rank: int = rank, calls: Any = calls, **kw: Any) -> Any:
            members = list(range(size)) if ranks is None else [int(r) for r in ranks]
            calls.append(members)
            return _Group(members) if rank in members else dist.GroupMember.NON_GROUP_MEMBER

        with _in_place_of(attempt, (new_group, get_rank, get_world_size)):
            got = attempt(shape, axis)
        kind = "group" if isinstance(got, _Group) else "group of others" if got in (-100, 0) else ""
        kind = kind or f"value of type {type(got).__name__}"
        found.append({"kind": kind, "members": getattr(got, "members", []), "calls": calls})
    return found


@contextmanager
def _in_place_of(attempt: Attempt, stand_ins: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Put functions in the place of torch.distributed's of their names, also where the attempt imported these."""
    with ExitStack() as stack:
        for stand_in in stand_ins:
            name = stand_in.__name__
            real = getattr(dist, name)
            mine = getattr(attempt, "__globals__", {})
            for names in (vars(dist), vars(dist.distributed_c10d), mine):
                those = {key: stand_in for key, value in names.items() if value is real}
                stack.enter_context(mock.patch.dict(names, those))
        yield


def _sum_along(attempt: Attempt, axis: int) -> float:
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x, group=attempt((2, 2), axis))
    return x.item()


@contextmanager
def _four(ranks: Ranks) -> Iterator[Ranks]:
    """The reader's ranks where they are four on gloo, else four of our own."""
    if len(ranks) == FOUR and ranks.backend == "gloo" and ranks.device == "cpu":
        yield ranks
        return
    with Ranks(FOUR, device="cpu", backend="gloo", quiet=True) as own:
        yield own


barrier = Exercise(
    "groups.barrier",
    "a barrier out of a store",
    "medium",
    10,
    (
        "nobody leaves before the last one has come",
        "it can be used again and again",
        f"at most {MOST} requests to the store, a rank and barrier",
    ),
    judge_barrier,
)
axis = Exercise(
    "groups.axis",
    "the groups of an axis, by hand",
    "medium",
    10,
    (
        "this rank's group along the axis of a grid of that shape",
        "every rank makes the same groups in the same order",
        "right sums along both axes",
    ),
    judge_axis,
)

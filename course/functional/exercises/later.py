"""Lesson 02, `semantics.later`: an asynchronous tensor, a subclass that waits when its numbers are first used."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["later"]

LATE_S = 0.05
# calls with tensors that are under way, and the hint for what goes wrong there
CALLS = {
    "torch.cat([y, z], dim=0)": "an operator can take its tensors in a list: look into lists as well",
    "torch.searchsorted(sorted, numbers, sorter=z)": "an operator can take a tensor by keyword: look into kwargs as "
    "well, and give the operator all of them",
}
BOTH = "an operator can take several tensors that are under way: wait for each of them"


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """No wait for shapes, one wait at the first operator, and plain tensors out of operators."""
    hint = "it is called as MyLater(value, wait), and stands for `value` once `wait()` has been called"
    seen = on_ranks(ranks, _look, attempt, hint=hint)
    first = seen[0]
    if not first["tensor"]:
        raise Mistake(
            "it makes no torch.Tensor", "make it with torch.Tensor._make_wrapper_subclass in __new__"
        )
    said = f"made and asked for its shape, waits: {first['made']}"
    if first["made"]:
        raise Mistake(said, "nothing has used the numbers yet: keep `wait` for the first operator")
    if not first["shape"]:
        raise Mistake(said, "shape, dtype and device are those of `value`")
    say(said)
    said = f"y + 1, waits: {first['used']}, gives a {first['type']}"
    if not first["used"]:
        raise Mistake(said, "an operator needs the numbers: __torch_dispatch__ is where to wait for them")
    if any(not rank["right"] for rank in seen):
        raise Mistake(said, "the sum is not what comes out: wait first, then call the operator on `value`")
    if first["type"] != "Tensor":
        raise Mistake(
            said, "the numbers are there, so give back what the operator gives, without wrapping it again"
        )
    say(said)
    said = f"used three times, waits: {first['again']}"
    if first["again"] > 1:
        raise Mistake(said, "remember that the numbers have arrived: wait once")
    say(said)
    for call, hint in CALLS.items():
        said = f"{call}: {next((rank[call] for rank in seen if rank[call] != 'right'), 'right')}"
        if not said.endswith("right"):
            raise Mistake(said, BOTH if "1 of 2" in said else hint)
        say(said)


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: two all-reduces under way, the attempt around each, and what happens to the waits."""
    me = here()
    waits: list[str] = []

    def later(name: str, value: Any) -> Any:
        dist.barrier()
        if me.rank:
            time.sleep(LATE_S)  # so rank 0 has not got the sum when it looks
        work = dist.all_reduce(value, async_op=True)

        def wait() -> None:
            waits.append(name)
            work.wait()

        return value, attempt(value, wait), work

    def answer(operator: Any, right: Any, values: list[Any]) -> str:
        names = [f"{name} of {len(values)}" for name in ("first", "second")[: len(values)]]
        made = [later(name, value) for name, value in zip(names, values, strict=True)]
        try:
            result = operator(*(tensor for _, tensor, _ in made))
            waited = sum(name in waits for name in names)
            if waited < len(values):
                return f"waits for {waited} of {len(values)}"
            return "right" if torch.equal(result.cpu().to(right.dtype), right) else "wrong numbers"
        except Exception as error:
            return type(error).__name__
        finally:
            waits[:] = [name for name in waits if name not in names]
            for _, _, work in made:
                work.wait()

    def full() -> Any:
        return torch.full((4,), me.rank + 1.0, dtype=torch.float64, device=me.device)

    total = sum(range(1, me.world_size + 1))
    value, y, work = later("y", full())
    found: dict[str, Any] = {"tensor": isinstance(y, torch.Tensor)}
    if not found["tensor"]:
        work.wait()
        return found
    found["shape"] = (y.shape, y.dtype, y.device) == (value.shape, value.dtype, value.device)
    found["made"] = len(waits)
    result = y + 1
    found["used"], found["type"] = len(waits), type(result).__name__
    work.wait()
    if found["type"] == "Tensor":
        found["right"] = bool((result == total + 1).all())
        y * 2, torch.sin(y)
        found["again"] = len(waits)
        downwards = torch.arange(3, -1, -1, device=me.device)
        falling = torch.tensor([8.0, 6.0, 4.0, 2.0], device=me.device)
        tried: tuple[tuple[Any, Any, list[Any]], ...] = (
            (lambda a, b: torch.cat(tensors=[a, b], dim=0), torch.full((8,), total), [full(), full()]),
            (
                lambda z: torch.searchsorted(falling, torch.tensor([3.0, 7.0], device=me.device), sorter=z),
                torch.tensor([1, 3]),
                [downwards if me.rank == 0 else torch.zeros_like(downwards)],  # their sum sorts `falling`
            ),
        )
        for call, (operator, right, values) in zip(CALLS, tried, strict=True):
            found[call] = answer(operator, right, values)
    else:
        found["right"] = True  # what it holds is said by the next finding
    return found


later = Exercise(
    "semantics.later",
    "an asynchronous tensor",
    "hard",
    20,
    (
        "no wait when it is made or asked for its shape",
        "one wait, at the first operator, also if the tensor comes in a list",
        "plain tensors out of every operator",
    ),
    judge,
    takes="class",
)

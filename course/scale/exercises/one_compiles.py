"""Lesson 16, `scale.one_compiles`: ranks share a cache folder; one compiles, and the others use its entry."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from labkit import lessons, torch_compat
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.study.exercises import Attempt, Exercise, Mistake, judge_on_three, on_ranks
from labkit.torch_compat import funcol

__all__ = ["one_compiles"]

FORM = (
    "it is called on every rank as my_first_call(function, x), and returns what the compiled function returns"
)
WAITS = (
    "the ranks wait for each other: rank 0 cannot end its call while the others are outside of theirs, because the "
    "function has a collective. Compile in turn, and call together: a backend compiles, and is called before that"
)
TIMEOUT_S = 300.0


def _world() -> Any:
    return dist.group.WORLD


def _once(x: Any) -> Any:
    return funcol.all_reduce(torch.sin(x @ x) + 1, "sum", _world()) * 3


def _twice(x: Any) -> Any:
    half = funcol.all_reduce(torch.tanh(x), "avg", _world())
    return funcol.all_reduce((half @ x).cos(), "sum", _world()) - 1


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Two functions on the reader's ranks, and the start of one on three."""
    _starts(attempt, ranks, say, {"one all-reduce": _once, "two all-reduces": _twice}, (False, True))
    if len(ranks) != 3:
        hint = "on two ranks it is right: on any number, all but the one that compiles wait for its entry"
        judge_on_three(_first_start, attempt, hint)


def _first_start(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    _starts(attempt, ranks, say, {"one all-reduce": _once}, (False,))


def _starts(
    attempt: Attempt,
    ranks: Ranks,
    say: Callable[[str], None],
    functions: dict[str, Callable[[Any], Any]],
    starts: tuple[bool, ...],
) -> None:
    """Start with an empty folder and once more with what is in it; count the misses and hits of Inductor's cache."""
    for name, function in functions.items():
        with tempfile.TemporaryDirectory() as folder:
            for again in starts:
                try:
                    found = on_ranks(ranks, _call, attempt, function, folder, hint=FORM, timeout=TIMEOUT_S)
                except Mistake as mistake:
                    if "wait" in f"{mistake} {mistake.hint}":
                        raise Mistake(str(mistake), WAITS) from mistake
                    raise
                _counts(name, again, found)
                kind = "a restart" if again else "an empty folder"
                say(f"{name}, {kind}: {[(one['miss'], one['hit']) for one in found]} (compiled, hit) by rank")


def _counts(name: str, again: bool, found: list[dict[str, Any]]) -> None:
    misses, hits = ([one[end] for one in found] for end in ("miss", "hit"))
    seen = f"{name}, {'restart' if again else 'empty folder'}: compiled {misses}, hit {hits} by rank"
    wrong = [rank for rank, one in enumerate(found) if not one["right"]]
    if wrong:
        raise Mistake(f"{seen}; rank {wrong[0]} returns another result than eager", FORM)
    if not any(misses) and not any(hits):
        raise Mistake(seen, "nothing came to Inductor: compile the function with it on every rank")
    if again and any(misses):
        raise Mistake(seen, "on a restart the entry is in the folder: every rank has to find it")
    if not again and sum(misses) > 1:
        raise Mistake(
            seen, "the others looked before the entry was there: they may begin when one has compiled"
        )
    if any(miss + hit == 0 for miss, hit in zip(misses, hits, strict=True)):
        raise Mistake(seen, "a rank runs the function without Inductor: every rank compiles it or hits")


def _nap(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """A moment in the place of a sleep: polling goes on, and no rank is late enough because it slept."""
    sleep(min(seconds, 0.01))


def _call(attempt: Attempt, function: Callable[[Any], Any], folder: str) -> dict[str, Any]:
    """A first call with this cache folder: whether it is right, and what it added to the counters of the cache."""
    torch_compat.dynamo_reset()
    x, results = torch.linspace(-1, 1, 64).reshape(8, 8), list[Any]()
    with torch.no_grad(), mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder}):
        expected = function(x) + 0
        with quiet_stderr(), mock.patch("time.sleep", _nap):
            found = lessons.program("scale").counted(lambda: results.append(attempt(function, x)))
        y = results[0]
        right = isinstance(y, torch.Tensor) and y.shape == expected.shape
        right = right and bool(torch.allclose(y + 0, expected, atol=1e-5))
    torch_compat.dynamo_reset()
    return {**found, "right": right}


one_compiles = Exercise(
    "scale.one_compiles",
    "one compile for a folder",
    "hard",
    15,
    (
        "every rank's first call gives eager's result",
        "one rank compiles, the others hit its entry",
        "a restart compiles nothing",
    ),
    judge,
)

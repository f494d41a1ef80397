"""How the judges of lesson 04 work: a rank's measures, as a table of mistakes in the order in which they matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.study.exercises import Mistake

__all__ = ["NO_NUMBERS", "apart", "counted", "judge_by", "seen"]

NO_NUMBERS = "some of the results are NaN or infinite, and the right ones are numbers"


def seen(said: str, mistakes: Mapping[str, Any]) -> tuple[str, int, str]:
    """On a rank: what was seen, and the first mistake that was made. `mistakes` has by hint whether it was."""
    made = [(i, hint) for i, (hint, wrong) in enumerate(mistakes.items()) if wrong]
    return said, *(made[0] if made else (len(mistakes), ""))


def judge_by(ranks: Sequence[tuple[str, int, str]], say: Callable[[str], None]) -> None:
    """Raise the mistake that matters most on any rank; without one, say what the first saw."""
    rank, (said, _, hint) = min(enumerate(ranks), key=lambda one: one[1][1])
    if hint:
        raise Mistake(f"rank {rank}: {said}", hint)
    say(f"every rank: {said}" if len(ranks) > 1 else said)


def apart(y: Any, right: Any) -> float:
    """The largest difference; infinite where the shapes differ or a number is NaN."""
    return float((y - right).abs().nan_to_num(float("inf")).max()) if y.shape == right.shape else float("inf")


def counted(counts: Mapping[str, int]) -> str:
    """What a compiled forward ran, in words."""
    names = ("region", "break", "collective")
    return "compiled, " + ", ".join(f"{(n := counts[k + 's'])} {k}{'s' * (n != 1)}" for k in names)

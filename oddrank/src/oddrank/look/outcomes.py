"""What one difference changed in a run of `oddrank look --perturb`, against the run without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from oddrank.look.endings import Ending
from oddrank.look.look import Look

__all__ = ["OUTCOMES", "WORDS", "Outcome", "compare", "verdict"]

# the worst first
OUTCOMES = ("hang", "error", "collectives", "numbers", "graph")
WORDS = dict(
    zip(OUTCOMES, ("hang", "error", "other collectives", "wrong numbers", "another graph"), strict=True)
)

COMPARED = {"collectives": ["collectives"], "graph": ["graphs", "recompiles"], "numbers": ["numbers"]}


@dataclass(frozen=True)
class Outcome:
    """A row of the table.

    Attributes:
        name: Of the difference.
        said: The difference, in words.
        found: What it changed, of `OUTCOMES`, the worst first; empty for nothing.
        why: What is known of each.
        parting: The first decision of the compiler in which the rank parts from the others.
        seconds: How long the run took.
        folder: Of the run, in the folder of all.
        compared: What was equal in numbers.
        untried: Why the difference did not come about; '' if it did.
    """

    name: str
    said: str
    found: list[str]
    why: list[str]
    parting: str
    seconds: float
    folder: str
    compared: str = ""
    untried: str = ""

    @property
    def headline(self) -> str:
        """The worst that it changed, or 'same'."""
        return "not tried" if self.untried else WORDS[self.found[0]] if self.found else "same"

    def allowed(self, allow: Sequence[str]) -> bool:
        """Whether everything that it changed is allowed: 'graph', or 'batch:graph' for one difference."""
        return all(one in allow or f"{self.name}:{one}" in allow for one in self.found)

    def facts(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def verdict(rows: Sequence[Outcome], rank: int, noise: str = "") -> str:
    """Say in one sentence which runs differ from the one that they are compared with, and in what none does.

    Args:
        rows: What was compared: the run with warm caches, and one for each difference.
        rank: The rank that had the differences.
        noise: How far two runs without a difference are apart in numbers; '' where they are close.

    >>> verdict([Outcome("as it is, warm caches", "", [], [], "", 5.0, "warm")], 1)
    'the same in what was compared in each of 1 runs: collectives, graphs, recompiles and numbers'
    """
    left = (
        f"; numbers differ from run to run of the program as it is (has it a seed?), and were not compared: {noise}"
        if noise
        else ""
    )
    own = next((row.found for row in rows if not row.said), [])
    if own:
        left += (
            "; the program as it is differs between its own two runs, the second of which has warm caches"
            f" ({', '.join(WORDS[one] for one in own)}), so no run with a difference was blamed for that"
        )
    changed = [row.name for row in rows if row.found and row.said]
    tried = sum(not row.untried for row in rows)
    if changed:
        return (
            f"{len(changed)} of {tried} runs differ, by one thing on rank {rank}: {', '.join(changed)}{left}"
        )
    left_out = [*own, *(["numbers"] if noise else [])]
    *most, last = [words for kind, of in COMPARED.items() if kind not in left_out for words in of] or [
        "how it ended"
    ]
    what = f"{', '.join(most)} and {last}" if most else last
    return f"the same in what was compared in each of {tried} runs: {what}{left}"


def compare(ending: Ending, now: Look | None, before: Look | None, rank: int) -> tuple[list[str], list[str]]:
    """Compare a run with one that had no difference.

    Args:
        ending: How the run ended.
        now: What its ranks recorded.
        before: What those of the other run did.
        rank: The rank that differs.

    Returns:
        What changed, of `OUTCOMES`, and what is known of it.
    """
    if ending.said:
        kind = "collectives" if ending.diverged else "hang" if ending.hung else "error"
        return [kind], [ending.said]
    told, why = [], []
    if now is None or before is None or not now.steps:
        return ["error"], ["no step was recorded"]
    if (mine := _operations(now)) != (theirs := _operations(before)):
        told.append("collectives")
        apart = next(r for r in mine | theirs if mine.get(r) != theirs.get(r))
        why.append(
            f"rank {apart} calls {_listed(mine.get(apart, {}))}, and {_listed(theirs.get(apart, {}))} without it"
        )
    if (said := now.unequal()) and not before.unequal():
        told.append("numbers")
        why += said
    if (said_apart := now.apart()) and not before.apart() and said_apart not in why:
        told += [] if told else ["graph"]
        why.append(f"ranks differ: {said_apart}")
    return told, why


def _operations(looked: Look) -> dict[int, dict[str, float]]:
    """The collectives of a step, by rank and operation."""
    calls = looked.collectives
    return {
        rank: calls.groupby("operation")[f"rank {rank}"].sum().to_dict() if len(calls) else {}
        for rank in looked.ranks
    }


def _listed(operations: dict[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in operations.items() if count) or "no collective"

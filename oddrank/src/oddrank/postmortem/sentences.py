"""The sentences of a verdict, each with the places of its evidence, and ranks in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Sentence", "rank_names", "rank_numbers", "sentence"]


class _Evidence(Protocol):
    @property
    def cite(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, and the places of its evidence."""

    text: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text + (f"  [{', '.join(self.evidence[:4])}]" if self.evidence else "")


def sentence(text: str, *evidence: _Evidence) -> Sentence:
    """A sentence with rows, calls or records as its evidence."""
    return Sentence(text, tuple(one.cite for one in evidence))


def rank_names(ranks: Iterable[int]) -> str:
    """Ranks in words.

    >>> rank_names([0, 1, 2, 5]), rank_names([3])
    ('ranks 0 to 2, 5', 'rank 3')
    """
    ranks = list(ranks)
    return f"rank{'s' if len(ranks) != 1 else ''} {rank_numbers(ranks)}"


def rank_numbers(ranks: Iterable[int]) -> str:
    """The numbers of ranks, runs folded.

    >>> rank_numbers([0, 1, 2, 5]), rank_numbers([3])
    ('0 to 2, 5', '3')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)

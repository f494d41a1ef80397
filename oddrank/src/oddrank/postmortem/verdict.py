"""The verdict: which rank, at which collective, and what it did in its place; each sentence has its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from oddrank.postmortem.differences import Difference
from oddrank.postmortem.sentences import Sentence
from oddrank.postmortem.states import State

__all__ = ["Verdict"]


@dataclass(slots=True)
class Verdict:
    """What can be said. `kind` is one of difference, circle, dead, waiting, nothing wrong, cannot tell.

    `ranks` are those that the others wait for or differ from; `difference` is the first one, where there is one.
    """

    kind: str
    ranks: list[int]
    head: Sentence
    chain: list[Sentence] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    difference: Difference | None = None

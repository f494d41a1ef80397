"""Triage of a distributed job that hangs, is slow or jitters: questions in order, answered from evidence.

Follows topic 12's "Triage flow": hung means order of collectives until proven otherwise; then breaks; then recompiles.
The source's last step, that what differs between ranks is an error of correctness, is asked second here, because it
comes before all tuning. Needs only Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FLOW", "Evidence", "Step", "evidence_of", "triage"]


@dataclass
class Evidence:
    """What is known of a run.

    Args:
        hung: Whether ranks wait for each other.
        difference: The first collective in which the ranks differ, in words.
        breaks: Executed breaks in a steady forward, by rank.
        recompiles: Recompiles by rank.
        graphs: Graphs by rank.
        sites: Where graphs broke.
        guards: Which guards failed.
    """

    hung: bool = False
    difference: str = ""
    breaks: dict[int, int] = field(default_factory=dict)
    recompiles: dict[int, int] = field(default_factory=dict)
    graphs: dict[int, int] = field(default_factory=dict)
    sites: list[str] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)

    @property
    def differs(self) -> list[str]:
        """The counts that are not the same on every rank."""
        named = {"breaks": self.breaks, "recompiles": self.recompiles, "graphs": self.graphs}
        return [name for name, by_rank in named.items() if len(set(by_rank.values())) > 1]


@dataclass(frozen=True)
class Step:
    """A question of the path, its answer here, the evidence for it, and, where the path ends, what to do."""

    question: str
    answer: str
    because: str
    advice: str = ""


# question, what to do where the answer is yes; the path ends at the first yes
FLOW: tuple[tuple[str, str], ...] = (
    (
        "Is it hung?",
        "Order of collectives until proven otherwise: find the first that differs, and what made the ranks part.",
    ),
    (
        "Do breaks or recompiles differ between ranks?",
        "A correctness bug, not a matter of speed: restore parity before anything is tuned.",
    ),
    (
        "Are there graph breaks?",
        "TORCH_LOGS=graph_breaks: look for a stray disable, a print or a log call inside the compiled region.",
    ),
    (
        "Does it go on compiling?",
        "TORCH_LOGS=recompiles,guards: guard churn; freeze the dimension or flag, or mark it dynamic.",
    ),
)
HEALTHY = "Nothing of this flow: one program on every rank, compiled once. Now tune kernels."


def triage(evidence: Evidence) -> list[Step]:
    """Answer the questions of the flow in order, up to the one that ends it.

    >>> path = triage(Evidence(breaks={0: 0, 1: 2}))
    >>> [(step.question, step.answer) for step in path]
    [('Is it hung?', 'no'), ('Do breaks or recompiles differ between ranks?', 'yes')]
    """
    facts = (
        (evidence.hung, evidence.difference or ("the ranks wait" if evidence.hung else "every rank ended")),
        (bool(evidence.differs), _differing(evidence) or "every rank has the same counts"),
        (any(evidence.breaks.values()), _first(evidence.sites, _counted(evidence.breaks, "breaks"))),
        (any(evidence.recompiles.values()), _first(evidence.guards, _counted(evidence.recompiles, "recompiles"))),
    )  # fmt: skip
    path: list[Step] = []
    for (question, advice), (yes, because) in zip(FLOW, facts, strict=True):
        path.append(Step(question, "yes" if yes else "no", because, advice if yes else ""))
        if yes:
            return path
    path[-1] = Step(path[-1].question, "no", path[-1].because, HEALTHY)
    return path


def evidence_of(found: Any) -> Evidence:
    """Make evidence of what a run left.

    Args:
        found: A `RankError`, a merged `labkit` Record, Healths by rank, or an Evidence.

    Raises:
        ValueError: For anything else.
    """
    if isinstance(found, Evidence):
        return found
    if hasattr(found, "ended"):
        return Evidence(hung=found.hung, difference=found.difference)
    if hasattr(found, "counts") and hasattr(found, "breaks") and hasattr(found.breaks, "itertuples"):
        counts = found.counts()
        return Evidence(
            breaks=_by_rank(counts, "breaks"),
            recompiles=_by_rank(counts, "recompiles"),
            graphs=_by_rank(counts, "graphs"),
            sites=[f"{row.reason} at {row.place}" for row in found.breaks.itertuples()],
            guards=[str(row.reason) for row in found.recompiles.itertuples()],
        )
    if isinstance(found, Mapping) and found and all(hasattr(health, "sites") for health in found.values()):
        return Evidence(
            breaks={rank: health.breaks for rank, health in found.items()},
            recompiles={rank: health.recompiles for rank, health in found.items()},
            graphs={rank: health.graphs for rank, health in found.items()},
            sites=[site for health in found.values() for site in health.sites],
            guards=[guard for health in found.values() for guard in health.guards],
        )
    kinds = "a RankError, a merged record, or Healths by rank"
    raise ValueError(f"triage reads {kinds}, got {type(found).__name__}")


def _by_rank(counts: Any, column: str) -> dict[int, int]:
    return {int(rank): int(n) for rank, n in zip(counts["rank"], counts[column], strict=True)}


def _differing(evidence: Evidence) -> str:
    named = {"breaks": evidence.breaks, "recompiles": evidence.recompiles, "graphs": evidence.graphs}
    return "; ".join(_counted(named[name], name) for name in evidence.differs)


def _counted(by_rank: Mapping[int, int], name: str) -> str:
    if not by_rank:
        return f"{name}: not recorded"
    return f"{name}: " + ", ".join(f"rank {rank} {n}" for rank, n in sorted(by_rank.items()))


def _first(texts: Iterable[str], otherwise: str) -> str:
    first = next(iter(texts), "")
    return f"{otherwise}; first: {first}" if first else otherwise

"""Training on several ranks under the compiler: DDP, FSDP2, gathered weights, tensor parallelism, a pipeline."""

from __future__ import annotations

from labkit.experiments.training.parity import OPTIONS, TOLERANCE, run

TITLE = "Training under the compiler"
QUESTION = "Which routes train the model that one process would train, and what do they need for it?"
SOURCE = "topic 12, introduction and mental model; the compile post, core claims 2 and 7"
LINK = "gloo"

__all__ = ["LINK", "OPTIONS", "QUESTION", "SOURCE", "TITLE", "TOLERANCE", "passed", "run"]


def passed(report: object) -> bool:
    """Whether every route of a report learned what one process learns: what `labkit run training` exits with."""
    return bool(report.tables["routes"]["equal"].all())  # type: ignore[attr-defined]

"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import words

DIVERGENCE = Experiment(
    name="divergence",
    module="symmetry.experiment",
    title="Drill by defence: one rank differs",
    question="What does a rank that differs do to the others, and which defence notices before it does?",
    source="topic 12, experiment 2, rank-parity invariants and gotchas",
    cpu_backend="gloo",
    device="cpu",
    options=(
        words(
            "drill",
            "shape|size|dtype|flag|backend|branch|count|order|inputs|break|recompile",
            "only these drills",
        ),
    ),
)

"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import Option

COLLECTIVES = Experiment(
    name="collectives",
    module="functional.experiment",
    title="Every collective, eager and compiled",
    question="Which collectives does the compiler keep in its graph, and with the same numbers?",
    source="topic 11, introduction and mental model; the compile post, on translating traditional collectives",
    cpu_backend="gloo",  # `shm` does its work at once, and would hide what async_op=True is about
    options=(
        Option("only", str, "only collectives whose names begin so", "NAME", many=True),
        Option(
            "compiler",
            str,
            "torch.compile's backend (default aot_eager)",
            "NAME",
            among=("eager", "aot_eager", "inductor"),
        ),
    ),
)

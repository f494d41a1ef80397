"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, words

REPAIR = Experiment(
    name="repair",
    module="repair.experiment",
    title="A service, repaired fault by fault",
    question="What does each of nine faults do to a compiled tensor-parallel service, and who notices it?",
    source="topics 11 and 12: the faults of their bring-up, in one program",
    cpu_backend="shm",  # gloo's own delay would hide what is measured
    device="cpu",
    options=(
        words(
            "stage",
            "delivered|group|timeout|cold|setting|shape|counter|hidden|log|functional",
            "only the service as it is delivered, or after these mends",
        ),
        ROUNDS,
    ),
)

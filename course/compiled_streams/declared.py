"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, whole, words

OFFLOAD = Experiment(
    name="offload",
    module="compiled_streams.experiment",
    title="Activation offloading",
    question="How much slower is a step whose activations wait in the host's memory, and how much memory is saved?",
    source="slides: Applications and Results: Activation Offloading",
    cpu_backend="gloo",
    ranks=1,
    options=(
        words("shape", "Small|Med|XL", "the slides' shapes (default Small)"),
        whole("deep", "layers, instead of the slides' number", most=64),
        ROUNDS,
    ),
    record={"shape": ("Small", "Med", "XL")},
)

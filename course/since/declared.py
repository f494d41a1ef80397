"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import words

ONE_COMPILE = Experiment(
    name="one_compile",
    module="since.experiment",
    title="One compile for all ranks",
    question="Which graphs differ by rank, with and without compile on one rank, and what runs on another rank?",
    source="pytorch#169552, #172959, #178116 and torch.compiler.precompile",
    cpu_backend="gloo",
    device="cpu",
    ranks=4,
    options=(words("store", "aot_compile|disk cache|precompile", "only these stores"),),
)

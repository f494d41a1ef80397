"""Experiments that several topics share, as the command line knows them."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, whole

COMM_PASSES = Experiment(
    name="comm_passes",
    module="shared.comm_passes",
    title="Inductor's passes for communication",
    question="Do Inductor's passes move collectives away from their waits, and is the step faster for it?",
    source="slides: use case microbatch overlapping; topic 11, on overlap; torch's own settings",
    cpu_backend="gloo",
    options=(
        whole("width", "size of the square weights (default 384)", most=4096),
        whole("layers", "layers, each with an all-gather (default 3)", most=64),
        ROUNDS,
    ),
)

"""Experiments of this topic, as the command line knows them."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, whole, words

PLACEMENTS = Experiment(
    name="placements",
    module="dtensor.placements",
    title="Placements: who holds what",
    question="Which collective does a change of placement cost, forward and backward?",
    source="from NCCL to DTensor, sections 4 and 5",
    cpu_backend="gloo",  # its bytes pass sockets, where they can be counted
    options=(whole("side", "rows and columns of the matrices (default 4)", most=4096),),
)

ROUTES = Experiment(
    name="routes",
    module="dtensor.experiment",
    title="DTensor or explicit",
    question="What does DTensor cost over explicit collectives, and what does compiling leave of it?",
    source="topic 12, experiment 4; topic 11, on the two compiler-compatible routes; the compile post, core claim 8",
    cpu_backend="shm",  # gloo's own delay would hide what is measured
    options=(
        words("mlp", "tiny|small|medium|large", "a size of MLP", "SIZE"),
        words("block", "tiny|small|medium|large", "a size of transformer block", "SIZE"),
        ROUNDS,
    ),
)

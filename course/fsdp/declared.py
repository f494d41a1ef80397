"""The experiments of this topic, as the command line knows them."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, whole

FSDP = Experiment(
    name="fsdp",
    module="fsdp.experiment",
    title="Sharded training under the compiler",
    question="Who gathers the weights, and what does each way to shard them need to train as one process does?",
    source="topic 12, introduction and mental model; the compile post, core claims 2, 7 and 12",
    cpu_backend="gloo",
    options=(
        whole("steps", "steps of gradient descent before gradients are compared (default 3)", most=10_000),
    ),
    parts={
        "routes": "every route beside one process: losses, gradients, graphs, memory",
        "passes": "Inductor's passes on gathered weights",
    },
)

COMM_PASSES = Experiment(
    name="comm_passes",
    module="fsdp.comm_passes",
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

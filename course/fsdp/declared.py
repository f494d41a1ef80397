"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import whole

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

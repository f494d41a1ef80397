"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import whole

DDP = Experiment(
    name="ddp",
    module="ddp.experiment",
    title="DDP under the compiler",
    question="Which modes of DDP train the model that one process would train, and what do they need for it?",
    source="topic 12, introduction and mental model; the compile post, core claims 2 and 7",
    cpu_backend="gloo",
    options=(
        whole("steps", "steps of gradient descent before gradients are compared (default 3)", most=10_000),
    ),
    parts={
        "routes": "every mode beside one process: losses, gradients, graphs, memory",
        "eager": "DDP by hand and torch's on the clock: how much of the all-reduces is hidden",
        "compiled": "the modes of optimize_ddp on the clock, compiled autograd included",
        "drills": "what goes wrong on one rank, and how it ends",
    },
)

"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import whole

TRAINING = Experiment(
    name="training",
    module="ddp.experiment",
    title="Training under the compiler",
    question="Which routes train the model that one process would train, and what do they need for it?",
    source="topic 12, introduction and mental model; the compile post, core claims 2 and 7",
    cpu_backend="gloo",
    options=(
        whole("steps", "steps of gradient descent before gradients are compared (default 3)", most=10_000),
    ),
    parts={
        "routes": "every route beside one process: losses, gradients, graphs, memory",
        "ddp": "DDP's modes on the clock: when each bucket's all-reduce starts",
        "buckets": "the size of DDP's buckets: graphs, overlap, and time",
        "fsdp": "FSDP2 and gathered weights on the clock",
        "backward": "compiled autograd: hooks, recompiles, cost",
        "passes": "Inductor's passes on gathered weights",
        "curves": "an all-reduce in place that learns something else",
        "pipeline": "two stages and their microbatches",
        "drills": "what goes wrong on one rank, and how it ends",
    },
)

"""The experiments of this topic, as the command line knows them."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, whole

SIZE = whole("size", "rows and columns of the matrices on a GPU (default 1024)", most=65_536)

STREAMS = Experiment(
    name="streams",
    module="streams.experiment",
    title="The same kernels in one queue and in two",
    question="What do a second stream, and a host that waits, cost and save in time and memory?",
    source="slides: What Are Streams?",
    cpu_backend="gloo",
    options=(SIZE, ROUNDS),
    ranks=1,
)
MICROBATCH = Experiment(
    name="microbatch",
    module="streams.microbatch",
    title="Microbatches: sums in line, and beside the next product",
    question="What does overlapping the sums of microbatches save, and what memory does it take?",
    source="slides: use case microbatch overlapping",
    cpu_backend="gloo",
    options=(SIZE, ROUNDS),
)

"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, number, switch

OVERLAP = Experiment(
    name="overlap",
    module="streams.experiment",
    title="Communication beside computation",
    question="How much of an all-reduce is hidden, by whom, and by which definition?",
    source="slides: What Are Streams?, microbatch overlapping; topic 11, on overlap",
    cpu_backend="gloo",
    options=(
        number("mib", "size of the all-reduce in MiB (default 16)", "MIB", 0.001, 1024),
        number(
            "late", "ms by which the last rank comes late in the first case (default 60)", "MS", 0.001, 10_000
        ),
        switch("brief", "only the large message, and nothing compiled"),
        ROUNDS,
    ),
)

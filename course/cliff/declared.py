"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ALSO, BLOCKS, ROUNDS, switch, text

CLIFF = Experiment(
    name="cliff",
    module="cliff.experiment",
    title="The graph-break cliff",
    question="How can one decorator on the all-reduce make a compiled model slower than eager?",
    source="topic 11, experiments 1, 2 and 4; topic 12, experiment 1",
    cpu_backend="shm",  # gloo's own delay would hide what is measured
    options=(
        BLOCKS,
        ROUNDS,
        text("variants", "letters of the variants (default ABCDE)", "LETTERS", "[A-E]+"),
        ALSO,
        text(
            "elsewhere",
            "letters of the variants on other links and host only (default all)",
            "LETTERS",
            "[A-E]+",
        ),
        switch("cold", "compile from an empty cache"),
        switch("regional", "also time the first call block by block"),
    ),
    record={"cold": True, "regional": True},  # lesson 04 quotes what a compile from nothing took
)

"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ALSO, BLOCKS, ROUNDS, number, text

EAGER_TRAP = Experiment(
    name="eager_trap",
    module="trap.experiment",
    title="The eager trap",
    question="Why not functional collectives everywhere?",
    source="topic 11, experiment 3; PyTorch issue 138773",
    cpu_backend="shm",  # gloo's own delay would hide what is measured
    options=(
        BLOCKS,
        ROUNDS,
        text(
            "sizes",
            "bytes of a call's larger tensor, such as 4,16K,1M (default 4 to 64M in six steps)",
            "LIST",
            r"[\d\s,kKmMgG]+",
        ),
        number(
            "patience", "seconds that one size may take (default 4); above, it is left out", "S", 0.001, 3600
        ),
        ALSO,
    ),
)

"""Experiments of this topic, as the command line knows them."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import FRESH, FULL, ROUNDS, number, whole, words

COLD = Experiment(
    name="cold",
    module="cold.experiment",
    title="Cold and warm: what the first call costs",
    question="What does the first call cost, and which ways to pay it before there are?",
    source="topic 12, experiment 6; the compile post, core claims 1, 10 and 11",
    cpu_backend="shm",
    device="cpu",
    options=(
        words(
            "form",
            "eager|cold|second process|cache artifacts|aot_compile|AOTInductor|one rank cold|"
            "once, and shipped|block by block|nested region",
        ),
        whole("requests", "requests that are timed, the first included (default 100)", most=100_000, least=4),
        number("budget", "seconds that a rank may take until it is ready", "S", 0.001, 86_400),
        ROUNDS,
        FULL,
        FRESH,
    ),
)

SURVIVAL = Experiment(
    name="survival",
    module="cold.survival",
    title="What survives what",
    question="Which compiled artifacts survive which change, which are refused, and which go wrong in silence?",
    source="topic 12, experiment 6; the compile post, core claims 1 and 11",
    cpu_backend="gloo",
    device="cpu",
    options=(
        words("kind", "second process|cache artifacts|aot_compile|AOTInductor"),
        words("change", "nothing|shape|weights|code|setting|version string|environment"),
        FULL,
        FRESH,
    ),
)

"""The experiment of this topic, as the command line knows it."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ALSO, ROUNDS, Option, number, switch, text, whole

SCALE = Experiment(
    name="scale",
    module="scale.experiment",
    title="Past this machine",
    question="What would the block do on 1,024 ranks, and what would its communication cost?",
    source="topic 12, experiment 4; Patarasuk and Yuan 2009; Thakur, Rabenseifner and Gropp 2005",
    cpu_backend="shm",  # gloo is measured as well
    options=(
        text(
            "worlds",
            "world sizes to trace, such as 2,4,1024 (default 2 to 1024 in doublings)",
            "LIST",
            r"[\d\s,]+",
        ),
        whole("dim", "features of the block (default 1024)", most=65_536),
        whole("heads", "heads of the block, which every world size divides (default 1024)", most=65_536),
        whole("tokens", "length of the sequence (default 32)", most=65_536),
        number(
            "alpha",
            "the link's latency, us a step; with --bandwidth, instead of measuring",
            "US",
            0,
            1000000000.0,
        ),
        number("bandwidth", "the link's bandwidth, GB/s; with --alpha", "GBPS", 1e-06, 1000000000.0),
        number(
            "overhead", "a forward's fixed cost, us; with --rate, instead of measuring", "US", 0, 1000000000.0
        ),
        number("rate", "a rank's rate, Gflop/s; with --overhead", "GFLOPS", 1e-06, 1000000000000.0),
        Option(
            "algorithm",
            str,
            "of all_reduce in the model (default ring)",
            "NAME",
            among=("ring", "doubling", "best"),
        ),
        switch("trace", "trace and compute the model only, and measure nothing: give all four constants"),
        ROUNDS,
        ALSO,
    ),
)

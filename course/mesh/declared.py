"""Experiments of this topic, as the command line knows them."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import ROUNDS, words

MESH_OR_WORLD = Experiment(
    name="mesh_or_world",
    module="mesh.experiment",
    title="Rank 0 outside the mesh",
    question="Who must be symmetric with whom, and what does a rank cost that need not be there?",
    source="topic 12, experiment 5 and mental model ('rank0-out-of-mesh')",
    cpu_backend="gloo",  # three ranks that spin would take more cores than a laptop has
    device="cpu",
    ranks=3,
    options=(ROUNDS,),
)

WRONG_GROUP = Experiment(
    name="wrong_group",
    module="mesh.wrong_group",
    title="The wrong group",
    question="What does a collective on the wrong group do, and who says so before it waits?",
    source="topic 12, 'Group boundary confusion', the invariants' row Topology, and experiment 5",
    cpu_backend="gloo",
    device="cpu",
    ranks=3,
    options=(
        words(
            "mistake",
            "world_inside|meets_the_plan|no_group|divisor|joins|joins_compiled|half_made|wrong_root|stays_away",
            "only these mistakes of wrong_group",
        ),
    ),
)

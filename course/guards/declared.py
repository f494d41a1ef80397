"""Experiments of this topic, as the command line knows them."""

from __future__ import annotations

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import FRESH, FULL, ROUNDS, text, words

RANGES = r"[\d\s:,-]+"  # sizes as `sweep.parse_range` reads them

GUARDS = Experiment(
    name="guards",
    module="guards.experiment",
    title="Guards and shapes: what compiles again",
    question="Which changes from call to call make it compile again, and which of them have to be frozen?",
    source="topic 12, experiment 3; the compile post, core claim 3",
    cpu_backend="gloo",
    device="cpu",
    options=(
        words(
            "dimension",
            "sequence length|batch|dtype|strides|requires_grad|int argument|float argument|bool argument|"
            "str argument|int attribute|float attribute|grad mode|thread count",
        ),
        words(
            "policy", "default|mark_dynamic|mark_unbacked|dynamic=True|dynamic=False", "how sizes are told"
        ),
        text("lengths", "sequence lengths to walk through, such as 16,24,32 or 16:128:16", "LIST", RANGES),
        text("batches", "batch sizes to walk through, such as 2,4 or 2:8:2", "LIST", RANGES),
        ROUNDS,
        FULL,
        FRESH,
    ),
)

DEPTH = Experiment(
    name="depth",
    module="guards.depth",
    title="Compile time over depth",
    question="How does the first call grow with depth, and what do regions do about it?",
    source="topic 12, experiment 3 and 'regional compilation'; the compile post, core claim 5",
    cpu_backend="shm",
    device="cpu",
    options=(
        text("depths", "blocks of the models, such as 1,2,4,8 or 2:12:2 (default 1,2,4,8)", "LIST", RANGES),
        ROUNDS,
        FULL,
        FRESH,
    ),
)

DRIFT = Experiment(
    name="drift",
    module="guards.drift",
    title="Numeric drift: compiled against eager",
    question="Do compiled code and eager give the same numbers, and if not, since which stage?",
    source="topic 12, gotchas; the compile post, actionables",
    cpu_backend="gloo",
    options=(words("dtype", "float32|bfloat16"), FRESH),
)

ODD_SHAPE = Experiment(
    name="odd_shape",
    module="guards.odd_shape",
    title="One rank sees another shape",
    question="What do ranks do that compile for other shapes, and do they still meet?",
    source="topic 12, experiment 2 and mental model; the compile post, core claim 10",
    cpu_backend="gloo",
    device="cpu",
)

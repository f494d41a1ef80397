"""How compile time grows with the depth of a transformer: the whole model's first call, in rounds over depths."""

from __future__ import annotations

import tempfile

from labkit.lessons.guards import depth
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict

DEPTHS = (3, 12)


@probe
def growth(bench: Bench) -> Seen:
    """First calls of a whole model of two depths, compiled from nothing by Dynamo, eight rounds of both."""
    with tempfile.TemporaryDirectory() as folder:
        report = depth.run(bench.ranks(backend="shm"), DEPTHS, forms=(depth.WHOLE,), folder=folder)
    line = report.tables["fits"].iloc[0]
    numbers = ("first_s", "per_block_s", "per_block_low", "per_block_high", "exponent", "low", "high")
    return {name: float(line[name]) for name in numbers}


@judging(growth)
def scales_badly(seen: Seen) -> Result:
    """Each further block costs compile time, and the whole grows at least in proportion to depth."""
    said = (
        f"{seen['per_block_s'] * 1e3:.0f} ms a block ({seen['per_block_low'] * 1e3:.0f} to "
        f"{seen['per_block_high'] * 1e3:.0f}), time ~ depth^{seen['exponent']:.2f} ({seen['low']:.2f} to "
        f"{seen['high']:.2f}) from {DEPTHS[0]} to {DEPTHS[1]} blocks, Dynamo alone"
    )
    if not seen["per_block_low"] > 0:
        return cannot_tell("a quieter machine: growth is not told from noise", said)
    if seen["high"] < 1:
        return cannot_tell("deeper models: at these a fixed part hides how the rest grows", said)
    return verdict(True, said)

"""How compile time grows with the depth of a transformer, compiled whole and block by block, in rounds over depths."""

from __future__ import annotations

import tempfile

from labkit.lessons.guards import depth
from labkit.lessons.shared.timed import timing_result
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict

DEPTHS = (3, 12)


@probe
def growth(bench: Bench) -> Seen:
    """First calls of a model of two depths, whole and block by block, compiled from nothing by Dynamo, eight rounds."""
    with tempfile.TemporaryDirectory() as folder:
        report = depth.run(
            bench.ranks(backend="shm"), DEPTHS, forms=(depth.WHOLE, depth.BLOCKS), folder=folder
        )
    fits, apart = report.tables["fits"].set_index("form"), report.tables["slopes"].iloc[0]
    numbers = ("per_block_s", "per_block_low", "per_block_high")
    (deepest,) = report.verdicts
    traced = report.tables["graphs"].query(f"depth == {DEPTHS[1]}").groupby("form")["traced"].max()
    return {
        "whole": {name: float(fits.loc[depth.WHOLE, name]) for name in numbers},
        "blocks": {name: float(fits.loc[depth.BLOCKS, name]) for name in numbers},
        "a_block_takes": str(apart["outcome"]),
        "traced": {"whole": int(traced[depth.WHOLE]), "blocks": int(traced[depth.BLOCKS])},
        "deepest": deepest.to_dict() | {"label": f"{report.label}, Dynamo alone, {DEPTHS[1]} blocks"},
    }


@judging(growth)
def scales_badly(seen: Seen) -> Result:
    """Each further block costs compile time, although it has the code of the first: more than block by block."""
    whole, blocks = seen["whole"], seen["blocks"]
    each = [
        f"{row['per_block_s'] * 1e3:.0f} ms ({row['per_block_low'] * 1e3:.0f} to {row['per_block_high'] * 1e3:.0f})"
        for row in (whole, blocks)
    ]
    said = f"a further block takes {each[0]} compiled whole, {each[1]} block by block, from {DEPTHS[0]} to {DEPTHS[1]} "
    said += "blocks, Dynamo alone"
    if whole["per_block_high"] < 0 or seen["a_block_takes"] == "more":
        return verdict(False, said)
    if whole["per_block_low"] <= 0 or seen["a_block_takes"] != "less":
        return cannot_tell("a quieter machine: growth is not told from noise", said)
    return verdict(True, said)


@judging(growth)
def blocks_compile_faster(seen: Seen) -> Result:
    """The first call of a deep model takes less time where its blocks are compiled one by one than in one piece, and a
    backend gets one block instead of all."""
    faster, traced = timing_result(seen["deepest"], "faster", "a quieter machine"), seen["traced"]
    said = f"{faster.measured}; blocks that a backend gets: {traced['blocks']}, not {traced['whole']}"
    if traced != {"whole": DEPTHS[1], "blocks": 1}:
        return verdict(False, said)
    return Result(faster.status, said, faster.missing)

"""What lesson 04's own measuring cell counts and times, at two blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lesson_cells
import pandas as pd
import pytest

import labkit
from labkit import timing

BLOCKS, ROUNDS = 2, 8
PROGRAM = ("cell-03-acbcd49c", "prog-linear", "prog-norm", "prog-block", "prog-model")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def space() -> Iterator[dict[str, Any]]:
    with labkit.Ranks(2, device="cpu", backend="shm", timeout=300, quiet=True) as ranks:
        names = {"ranks": ranks, "pd": pd, "labkit": labkit, "timing": timing, "ROUNDS": ROUNDS}
        names["Times"] = timing.Times
        made = lesson_cells.run("04_graph_break_cliff", *PROGRAM, **names)
        names = {**made, "config": made["Config"](blocks=BLOCKS)}
        yield lesson_cells.run("04_graph_break_cliff", "measure", "verdicts", **names)


def counts(table: pd.DataFrame) -> pd.Series:
    mine = table.drop(columns="rank")
    assert len(mine) == 2 and len(mine.drop_duplicates()) == 1, "both ranks must count the same"
    return mine.iloc[0]


def test_disabled_collectives_fragment_every_block(space):
    found = counts(space["counts"].loc["B"])
    assert found["collectives"] == found["at_collective"] == 4 * BLOCKS
    assert found["regions"] == 11 * BLOCKS
    assert found["breaks"] == 8 * BLOCKS
    assert found["skips"] == 1  # Model.forward, whose loop a break ends
    # the static counter does not grow with the blocks
    assert 0 < found["static_breaks"] < found["breaks"]


def test_eager_enters_no_region(space):
    for variant in "AD":
        found = counts(space["counts"].loc[variant])
        assert (found["regions"], found["breaks"], found["graphs"]) == (0, 0, 0)
        assert found["collectives"] == 4 * BLOCKS


def test_one_graph_and_no_break_without_disable(space):
    space["VARIANTS"]["E"] = (True, space["inplace"])
    space["ranks"].restart()  # a record also lists what B's frames have given up
    found = space["ranks"].run(space["measure"], "E", timeout=300)
    plain = labkit.records.merge(one["records"]["E"] for one in found.values()).counts
    for table in (space["counts"].loc["C"], plain):
        one = counts(table)
        assert (one["regions"], one["breaks"], one["graphs"], one["skips"]) == (1, 0, 1, 0)
        assert one["collectives"] == 4 * BLOCKS


def test_each_variant_is_timed_in_each_round_on_each_rank(space):
    (times,) = space["times"].values()
    assert times.frame.groupby(["variant", "rank"]).size().to_dict() == {
        (variant, rank): ROUNDS for variant in "ABCD" for rank in (0, 1)
    }

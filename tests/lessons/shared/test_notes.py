"""Notes of ranks: what ended, what did not, and how each rank's part ended, whatever became of the rank."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from course.shared.notes import note_run
from course.shared.timelines import timelines


def served(how, note):
    with note("compute", "a, layer"):
        pass
    if how == "raises":
        raise RuntimeError("no")
    with note("collective", "sum"):
        if how == "hangs" and dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        elif how == "dies" and dist.get_rank() == 1:
            time.sleep(1)  # until the other rank has returned, also on a busy machine
            os._exit(3)
        elif how == "computes" and dist.get_rank() == 0:
            time.sleep(60)
        elif how == "computes":
            time.sleep(1)  # until the other rank is at work
            raise ValueError("the other rank is still at work")
    return dist.get_rank() if how == "returns" else None


@pytest.mark.parametrize(
    ("how", "said", "unfinished"),
    [
        ("returns", ["returned 0", "returned 1"], []),
        ("raises", ["raised", "raised"], []),
        ("hangs", ["still waits", "returned"], [0]),
        ("dies", ["returned", "died"], [1]),
        ("computes", ["not finished", "raised"], [0, 1]),
    ],
)
def test_notes_outlive_their_ranks(ranks, how, said, unfinished):
    notes, ends, error = note_run(ranks, how, served, how, stall=1.0)
    assert list(ends["said"]) == said and (error is None) == (how == "returns")
    assert list(notes.loc[notes["what"] == "a, layer", "rank"]) == [0, 1]
    assert list(notes.loc[notes["end"].isna(), "rank"]) == unfinished
    assert (ends["at"] >= notes.groupby("rank")["end"].max()).all()
    assert f"{how}, rank 1: a, layer" in timelines(notes, ends, title="t").summary


def nested(note):
    with note("collective", "call"):
        with note("compile", "inside"):
            pass
        if dist.get_rank() == 1:
            with note("compile", "again"):
                raise RuntimeError("no")


def test_a_piece_inside_another_one_cuts_that_in_two(ranks):
    notes, _, error = note_run(ranks, "d", nested)
    found = {rank: list(mine["what"]) for rank, mine in notes.groupby("rank")}
    assert error is not None
    assert found == {0: ["call", "inside", "call"], 1: ["call", "inside", "call", "again"]}
    assert list(notes["end"].isna()) == [False] * 6 + [True]
    for _, mine in notes.groupby("rank"):
        assert list(mine["end"])[:-1] == list(mine["begin"])[1:]

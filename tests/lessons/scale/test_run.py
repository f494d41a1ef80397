"""Lesson 16 from top to bottom: what a rank that is not there compiles, and who finds whose entry in the cache."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "16_beyond_this_machine"
SIZES = ("ROUNDS=50 STARTS=2",)  # fewer timings than a reader's

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def places(run, cell):
    """A row for each rank in the table of a cell: number, groups, shape of the weight, pads, letter of the graph."""
    row = re.compile(r" (\d+) +(\d+), (\d+) +(\d+), (\d+) +(\d+) +([A-F])\s*$", re.MULTILINE)
    return [(*map(int, found[:-1]), found[-1]) for found in row.findall(run.text(cell))]


def test_sizes_that_divide_give_one_graph_and_others_one_for_each_shape(run):
    dp, tp = run.values["DP"], run.values["TP"]
    even, uneven = places(run, "scale-08"), places(run, "scale-10")
    ranks = [0, 1, tp * (dp // 2) + tp // 2, tp - 1, tp * (dp - 1), dp * tp - 1]
    groups = [
        (1 + rank % tp, 1 + tp + rank // tp) for rank in ranks
    ]  # one for each column, then for each row
    assert even == [(rank, *pair, 32, 32, 0, "A") for rank, pair in zip(ranks, groups, strict=True)]
    shapes = [(32, 32, 1, "A")] * 3 + [(32, 31, 1, "B"), (31, 32, 2, "C"), (31, 31, 2, "D")]
    assert uneven == [(rank, *pair, *shape) for rank, pair, shape in zip(ranks, groups, shapes, strict=True)]
    assert "measured: 6 of 6 ranks" in run.text("scale-08")
    said = run.text("scale-10")
    assert said.count("rank 0 True, rank 1 True") == 2 and "False" not in said  # real ranks compile the same
    answers = run.table("scale", "answers")["found"]
    assert answers[0] == len({one[-1] for one in uneven})


def test_work_is_shared_and_messages_keep_their_size(run):
    rows, columns, tokens, wide = 8192, 32768, 4096, 2
    flops = {p: 4 * tokens * rows * columns // p for p in (2, 64, 1024)}
    sent = f"{wide * tokens * rows}"
    shown = run.text("scale-19").strip().splitlines()[-3:]
    assert [row.split()[1:] for row in shown] == [
        [f"{p}", f"{one}", f"[{sent}]", f"{3 * one}", f"[{sent},", f"{sent}]"] for p, one in flops.items()
    ]


def test_a_model_is_judged_on_each_width_that_was_not_fitted(run):
    check = run.table("scale", "check")
    cases = check.groupby("ranks")["width"].agg(list)
    assert {1, 2} <= set(cases.index) and all(widths == [128, 256, 512] for widths in cases)
    assert set(check["verdict"]) <= {"holds", "fails", "cannot tell"}
    assert (check["low"] <= check["median"]).all() and (check["median"] <= check["high"]).all()
    # on one rank there is nothing to talk about; else no talk is less, and ten times is more
    alone, talk = check[check["ranks"] == 1], check[check["ranks"] > 1]
    assert (alone["model"] == alone["no talk"]).all() and (alone["model"] == alone["ten times"]).all()
    assert (talk["no talk"] < talk["model"]).all() and (talk["model"] < talk["ten times"]).all()


def test_where_ranks_start_at_once_all_compile_and_a_restart_compiles_nothing(run):
    starts = run.table("scale", "starts")
    found = starts.groupby("kind")[["miss", "hit"]].agg(list)
    alone = run.values["STARTS"]
    assert found.loc["one folder for both"].tolist() == [[1, 1], [0, 0]]
    assert found.loc["empty folder"].tolist() == [[1] * alone, [0] * alone]
    assert found.loc["restart"].tolist() == [[0] * alone, [1] * alone]
    slowest = starts.loc[starts["kind"] == "empty folder", "seconds"].max()
    simulated = run.table("scale", "simulated")
    every = simulated[simulated["policy"] == "everyone compiles"]
    assert (every["ready s"] <= slowest + 1e-9).all() and list(every["ranks"]) == [2, 8, 64, 1024]


def test_who_finds_whose_entry(run):
    keys = run.table("scale", "keys")
    found = keys.groupby("kind", sort=False)[["miss", "hit"]].agg(list)
    assert found.loc["plain"].tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]  # the rows: ranks 0 and 1, 2 and 3
    assert found.loc["DTensor"].tolist() == [[1, 0, 0, 0], [0, 1, 1, 1]]
    assert found.loc["DTensor, FX alone"].tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]
    failed = keys[keys["error"] != ""]
    assert failed["error"].str.startswith("Could not resolve the process group").all()
    assert list(zip(failed["kind"], failed["rank"], strict=True)) == [("DTensor", rank) for rank in (1, 2, 3)]


def test_the_exercises_attempts_are_told_apart(run):
    turn, together, solution = run.text("scale-44").split("--- ")[1:]
    assert "the ranks wait for each other" in turn and "the others looked before the entry" in together
    assert "passed: two all-reduces, a restart: [(0, 1), (0, 1)]" in solution

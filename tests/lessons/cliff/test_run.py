"""Lesson 04 from top to bottom: what its cells count, by the number of blocks, and what its reports keep."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "04_graph_break_cliff"
SIZES = (pytest.param("BLOCKS=2 ROUNDS=8", marks=pytest.mark.guard), "")

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_what_runs_in_a_forward_of_each_variant(run):
    n = run.values["BLOCKS"]
    found = run.table("cliff", "counts").set_index("variant")
    columns = ["regions", "breaks", "at_collective", "collectives", "graphs", "static_breaks"]
    assert {name: (*row,) for name, row in found[columns].astype(int).iterrows()} == {
        "A": (0, 0, 0, 4 * n, 0, 0),
        "D": (0, 0, 0, 4 * n, 0, 0),
        "C": (1, 0, 0, 4 * n, 1, 0),
        "E": (1, 0, 0, 4 * n, 1, 0),
        "R": (n, 0, 0, 4 * n, 1, 0),
        "F": (5 * n, 4 * n, 4 * n, 4 * n, 5, 4),
        "B": (11 * n, 8 * n, 4 * n, 4 * n, 9, 7),  # compiled once, however many blocks share the code
    }
    assert run.text("cell-16-12df5cf5").strip().endswith(f"measured: {8 * n} breaks")


def test_where_one_block_breaks(run):
    rows = [row.split() for row in run.text("cell-07-7e7b20ca").splitlines()]
    given_up = [row[1] for row in rows if row[:1] == ["gave-up"]]
    assert given_up == ["Model.forward"]  # its loop calls what breaks
    breaks = [row for row in rows if row[:1] == ["break"]]
    places = [row[-3] for row in breaks]
    assert places == ["(RMSNorm.forward)"] * 3 + ["(RowParallelLinear.forward)"] * 4
    assert [int(row[-2]) for row in breaks] == [1, 2, 1, 1, 1, 1, 1]  # two norms share their own break
    assert [int(row[-1]) for row in breaks] == [0, 2, 0, 0, 1, 0, 1]
    said = " ".join(run.text("cell-07-7e7b20ca").split())
    assert "C: 1 region, 4 collectives, no break | B: 11 regions, 4 collectives, 8 breaks" in said


def test_what_the_toys_count(run):
    rows = {}
    for row in run.text("toys").splitlines():
        if found := re.match(r"(\w+)((?: +\d+)+) *$", row):
            rows.setdefault(found[1], []).extend(map(int, found[2].split()))
    # breaks by default and nested, regions by default and nested
    assert rows == {
        "breaks_in_a_try": [0, 0, 0, 0],
        "breaks_in_the_loop": [0, 0, 0, 0],
        "calls_step_8_times": [1, 1, 16, 16],
        "deeper": [2, 1, 4, 2],
        "step": [1, 1, 2, 2],
    }


def test_the_three_all_reduces_give_the_numbers_of_one_process(run):
    errors = re.findall(r"(\w+) +largest error (\S+)", run.text("right"))
    assert [name for name, _ in errors] == ["inplace", "disabled", "functional"]
    assert all(float(error) < 1e-5 for _, error in errors)


def test_a_hidden_call_is_refused_where_no_break_is_allowed(run):
    functional, disabled = run.text("refuse").split("--- disabled")
    assert "--- functional\none graph\n" in functional
    assert "Skip calling `torch.compiler.disable()`d function" in disabled
    assert disabled.strip().endswith("self.reduce(squares) / self.dim + self.eps)")


def test_under_torchrun_the_ranks_that_are_linked_count_the_same(run):
    said = re.findall(
        r"(\w+) +(\d+) breaks counted, (\d+) regions a forward, error (\S+)", run.text("script-run")
    )
    counts = {name: (int(breaks), int(regions)) for name, breaks, regions, _ in said}
    assert counts == {"disabled": (7, 11 * 4), "functional": (0, 1), "inplace": (0, 1)}
    assert all(float(error) < 1e-5 for *_, error in said)


def test_each_variant_is_timed_in_each_round_and_three_of_them_on_each_rank(run):
    rows = run.table("cliff", "samples").groupby(["evidence", "variant", "rank"], sort=False).size()
    assert set(rows) == {run.values["ROUNDS"]}
    alone, linked = (rows[label].index for label in rows.index.unique("evidence"))
    assert sorted(name[0] for name, _ in alone) == sorted("ABCDEFR") and {rank for _, rank in alone} == {0}
    assert sorted((name[0], rank) for name, rank in linked) == [(v, rank) for v in "ABC" for rank in (0, 1)]
    pairs = [(one.a, one.b) for one in run.reports["cliff"].verdicts]
    assert len(pairs) == 8 + 3 and pairs[8:] == pairs[:3]
    sizes = run.table("cliff", "sizes").groupby("size", sort=False)["pair"].agg(list)
    assert len(sizes) == 3 and all(pairs == ["B / A", "B / C", "E / C"] for pairs in sizes)
    tested = int(re.search(r"^(\d+) breaks / line", run.text("slope"), re.MULTILINE)[1])
    assert tested == 8 * max(run.values["BLOCKS"], 8)

"""Lesson 04 from top to bottom: what its cells count, by the number of blocks, and what its reports keep."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "04_graph_break_cliff"
SIZES = (pytest.param("BLOCKS=2 ROUNDS=8", marks=pytest.mark.guard), "")
NAMES = ["eager", "functional", "decorator deleted", "functional, by block", "hidden"]

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def html(run, cell: str) -> str:
    (found,) = (one for one in run.notebook.cells if one.get("id") == cell)
    return "\n".join("".join(one.get("data", {}).get("text/html", "")) for one in found.outputs)


def cells_of(page: str) -> list[list[str]]:
    """The rows of the tables of a page, as words."""
    rows = re.findall(r"<tr.*?</tr>", page, re.DOTALL)
    return [
        [
            " ".join(re.sub(r"<[^>]+>|&nbsp;", " ", one).split())
            for one in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)
        ]
        for row in rows
    ]


def test_what_runs_in_a_forward_of_each_variant(run):
    n = run.values["BLOCKS"]
    found = run.table("cliff", "counts").set_index("variant")
    columns = ["regions", "breaks", "collectives", "breaks counted"]
    assert {name: (*row,) for name, row in found[columns].astype(int).iterrows()} == {
        "eager": (0, 0, 4 * n, 0),
        "functional": (1, 0, 4 * n, 0),
        "decorator deleted": (1, 0, 4 * n, 0),
        "functional, by block": (n, 0, 4 * n, 0),
        "hidden": (11 * n, 8 * n, 4 * n, 7),  # compiled once, however many blocks share the code
        "hidden in one block": (11 + 15 * (n - 1), 8 * n, 4 * n, 7),  # 4 functional calls a block are regions
    }


def test_one_odd_block_breaks_the_seven_others_unless_they_can_be_told_apart(run):
    rows = [row for row in cells_of(html(run, "odd")) if row[-1].isdigit()]
    held = "its layer out holds a hidden call"
    assert [(row[0], *map(int, row[1:])) for row in rows] == [
        ("like the others", 1, 1, 1),
        ("like the others", 1, 1, 1),  # once in the bench, then folded with the others
        ("a flag in the block, and a print", 9, 9, 9),
        ("a flag in its layer out, and a print", 11, 25, 25),
        (held, 10, 31, 31),  # its version is asked first from the second forward on
        (f"{held}; block by block", 10, 31, 31),
        (f"{held}; a class of its own", 10, 10, 10),
        (f"{held}; block disabled", 7, 7, 7),
    ]


def test_the_bench_shows_more_regions_for_one_block_than_for_eight(run):
    rows = [row for row in cells_of(html(run, "bench-all")) if "hiding block" in row[0]]
    assert [row[:4] for row in rows] == [
        ["a model with 8 hiding blocks", "88", "64", "32"],
        ["a model with 4 hiding blocks", "104", "64", "32"],
        ["a model with 1 hiding block", "116", "64", "32"],
    ]
    first = [row for row in cells_of(html(run, "bench")) if "hiding block" in row[0]]
    assert first[0][1:4] == ["1", "0", "32"]  # what is saved of it gives nothing away


def test_what_answers_a_prediction_is_folded(run):
    for cell in (
        "deeper",
        "toys",
        "cell-07-7e7b20ca",
        "cell-16-12df5cf5",
        "bench-all",
        "verdicts",
    ):
        shown = [part for part in html(run, cell).splitlines() if part.strip()]
        assert any(part.startswith("<details>") for part in shown), cell
        assert "region" not in run.text(cell).lower(), cell
    assert "measured: 8 breaks" in html(run, "cell-16-12df5cf5")


def test_the_source_says_where_one_block_breaks(run):
    page = html(run, "cell-07-7e7b20ca")
    said = " ".join(re.sub(r"<[^>]+>", "", page).split())
    for function in ("Block.forward", "RMSNorm.forward", "RowParallelLinear.forward", "Model.forward"):
        assert function in said
    assert said.count("disabled") and "✂" in said and "breaks_in_a_try" not in said


def test_what_the_toys_count(run):
    rows = {name: [*map(int, numbers)] for name, *numbers in cells_of(html(run, "toys"))[1:]}
    assert rows == {
        "breaks_in_a_try": [0, 0],
        "breaks_in_the_loop": [0, 0],
        "calls_step_8_times": [1, 16],
        "deeper": [2, 4],
        "step": [1, 2],
    }
    assert "measured: 4 regions" in html(run, "deeper")


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
    assert sorted(alone) == sorted((name, 0) for name in [*NAMES, "hidden in one block"])
    assert sorted(linked) == sorted(
        (name, rank) for name in ("eager", "functional", "hidden") for rank in (0, 1)
    )
    verdicts = run.reports["cliff"].verdicts
    assert len(verdicts) == 7 + 3
    shown = [row for row in cells_of(html(run, "verdicts")) if len(row) == 4][1:]
    assert [(row[1], row[2]) for row in shown] == [(one.a, one.b) for one in verdicts]
    assert ["cannot tell" in row[3] for row in shown] == [one.outcome == "cannot tell" for one in verdicts]
    tested = int(re.search(r"^(\d+) breaks / line", run.text("slope"), re.MULTILINE)[1])
    assert tested == 8 * max(run.values["BLOCKS"], 8)

"""Lesson 02 from top to bottom, and what its report and its cells say."""

from __future__ import annotations

import re

import pytest
import torch
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

from labkit import lessons, torch_compat

LESSON = "02_inplace_vs_functional"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def page(run, cell: str) -> str:
    (found,) = (one for one in run.notebook.cells if one.get("id") == cell)
    return "\n".join("".join(one.get("data", {}).get("text/html", "")) for one in found.outputs)


def words_of(run, cell: str) -> list[list[str]]:
    """The rows of the tables of a cell's output; of a cell that opens, its word."""
    text = re.sub(r"</summary>.*?</details>", "", page(run, cell).partition("</summary>")[2], flags=re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    return [[re.sub(r"<[^>]+>", "", one) for one in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def test_what_dynamo_has_a_functional_form_for_stays_in_one_graph(run):
    program, found = lessons.program("functional"), run.table("collectives").set_index("collective")
    # torch/distributed/_functional_collectives.py, traceable_collective_remaps
    lists = {"all_gather"} | set(["reduce_scatter"] * torch_compat.within(torch.__version__, since="2.14"))
    kept = {name for name in program.FUNCTIONAL if name != "broadcast"} | lists
    for name in program.IN_PLACE:
        functional = "one graph" if name in program.FUNCTIONAL else "-"
        in_place = "one graph" if name in kept else "breaks"
        seen = found.loc[name, ["in place", "functional", "async_op"]].to_dict()
        assert seen == {"in place": in_place, "functional": functional, "async_op": "breaks"}
    assert "async_op=True" in page(run, "cell-21-l02")


def test_no_gradient_is_right_in_place_in_eager_and_all_are_that_are_traced(run):
    found = run.table("collectives").set_index("collective")
    assert not (found["in place, eager"] == "right").any()
    in_one_graph = found["in place"] == "one graph"
    assert (found.loc[in_one_graph, "in place, compiled"] == "right").all()
    breaks = found["in place"] == "breaks"
    assert (found.loc[breaks, "in place, compiled"] == found.loc[breaks, "in place, eager"]).all()


def test_only_the_functional_form_is_safe_under_both_passes(run):
    good, bad = "the sum + 1", "each rank its own"
    assert words_of(run, "edges-all")[1:] == [
        ["in place, hidden", good, bad, bad],
        ["in place, declared", good, good, bad],
        ["functional", good, good, good],
    ]


def test_another_schedule_on_one_rank_changes_the_sums_and_verify_sees_a_type(run):
    said = page(run, "cell-32-l02")
    sums = [[float(number) for number in two.split(", ")] for two in re.findall(r"rank \d: \[(.*?)\]", said)]
    assert sums == [[3, 300], [3, 300], [201, 102], [102, 201]]
    assert "different dtype" in said.rpartition("---")[2] and "a wrong pair on each" in said


def test_half_of_the_expressions_wait(run):
    waits = [row[0] for row in words_of(run, "cell-26-l02")[1:] if row[1] == "it waits"]
    assert sorted(waits) == sorted([
        "torch.empty_like(y)", "print(y, file=nowhere)", "y + 1", "y.tolist()", "y.wait()", "funcol.wait_tensor(y)",
    ])  # fmt: skip
    assert len(words_of(run, "cell-26-l02")) == 1 + 12


def test_the_compiler_and_the_loss_change_a_tensor_parallel_gradient(run):
    rows = {row[0]: row[1:] for row in words_of(run, "blocks-all")[1:]}
    assert len(rows) == 8
    for name, found in rows.items():
        whole = "the whole loss" in name
        if "in place, mode: eager" in name:
            assert found == ["not a multiple"] * 2 + ["right" if whole else "1/n of it"] * 2, name
        else:
            assert found == ["n times" if whole else "right"] * 4, name


def test_what_answers_a_prediction_is_folded(run):
    for cell in ("edges-all", "cell-21-l02", "cell-42-l02", "blocks-all", "cell-26-l02", "cell-32-l02"):
        shown = page(run, cell).partition("<details")
        assert shown[1] and not re.search("one graph<|right<|wrong|it waits|201", shown[0]), cell
        (text,) = {line for line in run.text(cell).splitlines() if "(folded)" in line}
        assert not re.search("one graph:|wrong|201", text), text

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
    assert found.loc["all_gather_into_tensor", "in place, eager"] == "by timing"
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


def test_the_compiler_the_loss_and_a_sum_change_a_tensor_parallel_gradient(run):
    rows = {row[0]: row[1:] for row in words_of(run, "blocks-all")[1:]}
    assert len(rows) == 10
    for name, found in rows.items():
        whole, (gain, up, down, bias) = "the whole loss" in name, found[4:]
        if "gradients summed" in name:
            assert found == ["right"] * 8, name
            continue
        assert {*found[:1], found[3], gain} == {"other"}, name
        if "in place · eager" in name:
            assert found[1:3] == ["other"] * 2, name
            assert [up, down, bias] == ["right" if whole else "1/n"] * 3, name
        else:
            assert {*found[1:3], up, down} == {"n times" if whole else "right"}, name
            assert bias == ("right" if whole else "1/n"), name


def test_what_answers_a_prediction_is_folded(run):
    for cell in ("edges-all", "cell-21-l02", "cell-42-l02", "blocks-all"):
        shown = page(run, cell).partition("<details")
        assert shown[1] and not re.search("one graph<|right<|wrong", shown[0]), cell
        (text,) = {line for line in run.text(cell).splitlines() if "(folded)" in line}
        assert not re.search("one graph:|wrong", text), text

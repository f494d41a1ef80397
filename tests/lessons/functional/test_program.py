"""The program of lesson 02: which collectives stay in one graph, what the others give, and the decision table."""

from __future__ import annotations

import lesson_cells
import pandas as pd
import pytest

from labkit import lessons

functional = lessons.program("functional")
# imports, the input, the collectives, their programs, `refusal`, and the measurement
CELLS = ("cell-02-l02", "cell-05-l02", "cell-32-l02", "cell-34-l02", "cell-38-l02", "cell-39-l02")


@pytest.fixture(scope="module")
def measured(ranks) -> pd.DataFrame:
    names = {"ranks": ranks, "pd": pd, "reveal": lambda question, value: value}
    return lesson_cells.run("02_inplace_vs_functional", *CELLS, ONLY="", COMPILER="aot_eager", **names)[
        "programs"
    ]


@pytest.mark.slow
def test_every_collective_is_measured_in_each_of_its_forms(measured):
    forms = measured.reset_index().groupby("collective")["form"].agg(list)
    assert list(dict.fromkeys(measured.index.get_level_values("collective"))) == list(functional.IN_PLACE)
    assert forms["broadcast"] == ["in place", "async", "functional"]
    assert forms["all_gather_object"] == forms["broadcast_object_list"] == ["in place"]


@pytest.mark.slow
def test_what_dynamo_has_a_functional_form_for_stays_in_one_graph(measured):
    whole = measured["refused"] == ""
    in_place = whole.xs("in place", level="form")
    # torch/distributed/_functional_collectives.py, traceable_collective_remaps
    kept = [name for name in functional.FUNCTIONAL if name != "broadcast"] + ["all_gather list"]
    assert set(in_place[in_place].index) == set(kept)
    assert whole.xs("functional", level="form").all() and not whole.xs("async", level="form").any()
    assert "async_op=True" in measured.loc[("all_reduce sum", "async"), "refused"]


@pytest.mark.slow
def test_a_broken_graph_gives_eagers_numbers(measured):
    with_objects = measured.index.get_level_values("collective").str.contains("object")
    assert set(measured.loc[~with_objects, "gives"]) == {"eager's numbers"}


def decided(names: list[str]) -> list[dict[str, str]]:
    return [functional.decide(name) for name in names]


@pytest.mark.slow
def test_the_decision_for_a_sum_and_for_a_broadcast(ranks):
    rows = ranks.run(decided, ["all_reduce sum", "broadcast"], timeout=120).same()
    assert rows[0] == {
        "collective": "all_reduce sum",
        "compiled: in place": "one graph", "compiled: functional": "one graph", "compiled: async_op": "breaks",
        "same code": "yes", "gradient: in place": "wrong / right", "gradient: functional": "right / right",
        "gate": "no",
    }  # fmt: skip
    assert rows[1]["compiled: in place"] == "breaks" and rows[1]["gate"] == "yes"

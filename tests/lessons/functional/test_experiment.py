"""The table of collectives: its shape, the cases that are known, and what it shows where something refuses."""

from __future__ import annotations

import pandas as pd
import pytest

from course.functional import experiment as collectives
from course.functional.experiment import agreed
from labkit import lessons
from labkit.per_rank import PerRank
from labkit.report import Report

functional = lessons.program("functional")


@pytest.fixture(scope="module")
def whole(ranks) -> Report:
    return collectives.run(ranks)


def row(report: Report, collective: str, form: str) -> pd.Series:
    (found,) = report.frame.query("collective == @collective and form == @form").to_dict("records")
    return pd.Series(found)


@pytest.mark.slow
def test_one_row_for_each_collective_and_form_and_one_a_rank_beneath(whole):
    forms = whole.frame.groupby("collective")["form"].agg(list)
    assert forms["all_reduce sum"] == ["in place", "async", "async, no wait", "functional"]
    assert forms["broadcast"] == ["in place", "async", "functional"]
    assert forms["all_gather_object"] == forms["broadcast_object_list"] == ["in place"]
    each = whole.tables["ranks"]
    assert len(each) == 2 * len(whole.frame) and set(each["rank"]) == {0, 1}
    assert whole.label == "gloo · cpu" and whole.provenance["compiler"] == "aot_eager"


@pytest.mark.slow
def test_in_place_is_rewritten_and_functional_is_not(whole):
    inplace, functional = (row(whole, "all_reduce sum", form) for form in ("in place", "functional"))
    assert inplace["eager"] == functional["eager"] == "[10, 12, 14, 16]"
    assert inplace["one graph"] == functional["one graph"] == "yes"
    assert inplace["in the graph"] == "all_reduce, wait_tensor, copy_"
    assert functional["in the graph"] == "all_reduce, wait_tensor"
    assert inplace["numbers"] == functional["numbers"] == "same"


@pytest.mark.slow
def test_what_breaks_says_why_and_still_gives_the_same_numbers(whole):
    asked, broadcast = row(whole, "all_reduce sum", "async"), row(whole, "broadcast", "in place")
    assert asked["one graph"] == broadcast["one graph"] == "no"
    assert asked["graphs"] == 2 and "async_op=True" in asked["why"]
    assert asked["numbers"] == broadcast["numbers"] == "same"
    assert (
        broadcast["eager"] == "[0, 1, 2, 3]" and row(whole, "broadcast", "functional")["one graph"] == "yes"
    )


@pytest.mark.slow
def test_a_collective_that_nobody_waits_for_gives_other_numbers(whole):
    found = row(whole, "all_reduce sum", "async, no wait")
    assert found["eager"].startswith("rank 0: [0, 1, 2, 3]"), "rank 0 reads before its late peer has come"
    assert found["numbers"].startswith("other")
    assert any("all_reduce sum, async, no wait" in note for note in whole.notes)


@pytest.mark.slow
def test_it_survives_saving_and_is_drawn(whole, tmp_path):
    loaded = Report.load(whole.save(tmp_path))
    pd.testing.assert_frame_equal(loaded.frame, whole.frame, check_dtype=False)
    drawn = loaded.figure()
    assert "all_reduce sum one graph" in drawn.summary and "other numbers" in drawn.summary


@pytest.mark.slow
def test_the_whole_table(whole):
    table = whole.frame
    assert list(dict.fromkeys(table["collective"])) == list(functional.IN_PLACE)
    kept = table.groupby("form")["one graph"].apply(lambda found: list(found).count("yes"))
    assert kept["async"] == kept["async, no wait"] == 0
    assert kept["functional"] == (table["form"] == "functional").sum() == 7
    # what Dynamo has a translation for (torch/distributed/_functional_collectives.py, traceable_collective_remaps)
    inplace = table.query("form == 'in place'").set_index("collective")["one graph"]
    assert (
        inplace[[*list(functional.IN_PLACE)[:3], "all_gather_into_tensor", "all_gather list"]] == "yes"
    ).all()
    assert (inplace[["reduce_scatter_tensor", "all_to_all_single"]] == "yes").all()
    assert (inplace[["broadcast", "reduce", "scatter", "barrier", "all_to_all list"]] == "no").all()
    # a broken graph is slow, not wrong: only the race of the row without a wait gives other numbers
    other = table[~table["numbers"].isin(["same", "-"])]
    assert set(other["form"]) <= {"async, no wait"}


@pytest.mark.slow
def test_the_compiler_can_be_chosen(ranks):
    found = collectives.run(ranks, ["all_reduce max"], compiler="inductor")
    assert list(found.frame["one graph"]) == ["yes", "no", "yes"]
    assert (found.frame["numbers"] == "same").all()


def test_bad_requests_are_refused_before_anything_runs(ranks):
    calls = ranks.calls
    with pytest.raises(ValueError, match="no collective begins with 'allreduce': there is all_reduce sum"):
        collectives.run(ranks, ["allreduce"])
    with pytest.raises(ValueError, match="unknown compiler 'nvfuser': there is eager, aot_eager, inductor"):
        collectives.run(ranks, compiler="nvfuser")
    assert ranks.calls == calls


SEEN = {
    "collective": "all_reduce sum", "form": "in place", "eager": [3.0], "error": "", "first": [3.0], "later": [3.0],
    "one_graph": True, "graphs": 1, "breaks": 0, "reason": "", "text": "", "operators": ["all_reduce"], "failure": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "column", "says"),
    [
        ({}, {}, "numbers", "same"),
        ({}, {"eager": [4.0], "first": [4.0], "later": [4.0]}, "eager", "rank 0: [3]; rank 1: [4]"),
        ({}, {"first": [9.0]}, "numbers", "other on the first call"),
        ({}, {"later": [9.0]}, "numbers", "other later"),
        ({"first": [9.0]}, {"later": [9.0]}, "numbers", "other"),
        ({"one_graph": False}, {}, "one graph", "no / yes"),
        ({"graphs": 2}, {}, "graphs", "2 / 1"),
        ({"error": "RuntimeError: no AVG"}, {"error": "RuntimeError: no AVG"}, "one graph", "refused"),
        ({"error": "RuntimeError: no AVG"}, {"error": "RuntimeError: no AVG"}, "why", "RuntimeError: no AVG"),
        ({}, {"failure": "InternalError: x", "one_graph": False}, "one graph", "fails"),
        ({}, {"failure": "InternalError: x", "one_graph": False}, "numbers", "-"),
    ],
)
def test_a_row_hides_no_difference_between_ranks(rank_0, rank_1, column, says):
    found = PerRank([[SEEN | rank_0], [SEEN | rank_1]])
    assert collectives._report(found, "gloo · cpu", {}).frame.iloc[0][column] == says


def test_operators_are_read_from_code_and_not_from_comments():
    code = (
        "y = torch.ops._c10d_functional.all_reduce(x, 'sum', '0')  # code: x.copy_(all_reduce(x))\nx.copy_(y)"
    )
    assert collectives._operators(code) == ["all_reduce", "copy_"]
    assert collectives._operators("") == []


@pytest.mark.slow
def test_the_decision_table_has_what_has_a_functional_form(whole):
    table = whole.tables["decision"].set_index("collective")
    assert list(table.index) == [name for name in functional.IN_PLACE if name in functional.FUNCTIONAL]
    assert table.loc["all_reduce sum"].to_dict() == {
        "compiled: in place": "one graph", "compiled: functional": "one graph", "compiled: async_op": "breaks",
        "same code": "yes", "gradient: in place": "wrong / right", "gradient: functional": "right / right",
        "gate": "no",
    }  # fmt: skip
    assert (
        table.loc["broadcast", "compiled: in place"] == "breaks" and table.loc["broadcast", "gate"] == "yes"
    )


def test_ranks_that_disagree_show_in_the_decision_table():
    rows = [[{"form": kept, "gate": "no"}] for kept in ("one graph", "breaks")]
    assert agreed(rows) == [{"form": "one graph / breaks", "gate": "no"}]

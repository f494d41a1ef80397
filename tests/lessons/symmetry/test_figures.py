"""The drill figures and the triage path: what they say for records in which something differs, or nothing does."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from labkit.contract import Health
from labkit.lessons.shared.drill_figures import figure, first_difference
from labkit.lessons.symmetry.triage import Evidence, evidence_of, triage
from labkit.lessons.symmetry.triage_figures import Triage, triage_static
from labkit.ranks.errors import Outcome, RankError
from labkit.report import Report


def calls(*rows):
    columns = ["rank", "number", "op", "what", "place", "ended"]
    return pd.DataFrame([(*row, True) for row in rows], columns=columns)


def report(rows):
    outcomes = pd.DataFrame(rows, columns=["drill", "defence", "outcome"])
    return Report("divergence", "t", "gloo · cpu", {"outcomes": outcomes})


def test_the_matrix_says_who_notices_most():
    drawn = figure(
        report(
            [("a", "none", "wrong"), ("a", "plan", "caught"), ("b", "none", "hung"), ("b", "plan", "hung")]
        )
    )
    assert "No single defence notices every drill. The widest: plan, 1 of 2; all together 1" in drawn.summary
    assert "b: none hung, plan hung" in drawn.summary
    assert "One defence notices all" in figure(report([("a", "plan", "repaired")])).summary
    assert "No defence notices any" in figure(report([("a", "none", "wrong")])).summary
    assert "No drill was run" in figure(report([])).summary


def test_the_first_difference_and_not_a_later_one():
    found = calls(
        (0, 1, "all_reduce", "(4,) float32", "a:1"), (1, 1, "all_reduce", "(4,) float32", "a:1"),
        (0, 2, "all_reduce", "(4,) float32", "a:2"), (1, 2, "all_reduce", "(4,) int32", "a:2"),
        (0, 3, "barrier", "", "a:3"),
    )  # fmt: skip
    assert "The ranks part at collective 2: rank 0 all_reduce (4,) float32, rank 1 all_reduce (4,) int32" in (
        first_difference(found).summary
    )
    assert "The ranks part at collective 3: rank 0 barrier, rank 1 never called it" in (
        first_difference(found[found["number"] != 2]).summary
    )


def test_the_same_call_from_another_line_and_no_difference_at_all():
    lines = calls((0, 1, "all_reduce", "(4,)", "a:1"), (1, 1, "all_reduce", "(4,)", "a:9"))
    assert "part at collective 1: the same call, from another line" in first_difference(lines).summary
    alike = calls((0, 1, "all_reduce", "(4,)", "a:1"), (1, 1, "all_reduce", "(4,)", "a:1"))
    assert "sees no difference" in first_difference(alike).summary
    assert "No collective was recorded" in first_difference(calls()).summary


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="no figure 'pie'"):
        figure(report([]), "pie")
    with pytest.raises(ValueError, match="no table 'collectives'"):
        figure(report([]), "difference", drill="a")
    with pytest.raises(ValueError, match="column"):
        first_difference(pd.DataFrame({"rank": [0]}))


PATHS = [
    (Evidence(hung=True, breaks={0: 1, 1: 2}), ["yes"], "Order of collectives"),
    (Evidence(breaks={0: 0, 1: 2}), ["no", "yes"], "correctness bug"),
    (Evidence(recompiles={0: 0, 1: 1}), ["no", "yes"], "correctness bug"),
    (Evidence(breaks={0: 2, 1: 2}, sites=["print at a.py:3"]), ["no", "no", "yes"], "graph_breaks"),
    (Evidence(recompiles={0: 3, 1: 3}, guards=["x.size(0) == 2"]), ["no", "no", "no", "yes"], "guard churn"),
    (Evidence(breaks={0: 0, 1: 0}, recompiles={0: 0, 1: 0}), ["no"] * 4, "Nothing of this flow"),
]


@pytest.mark.parametrize(("evidence", "answers", "advice"), PATHS)
def test_the_path_follows_the_evidence(evidence, answers, advice):
    path = triage(evidence)
    assert [step.answer for step in path] == answers and advice in path[-1].advice
    drawn, text = triage_static(evidence, "gloo · cpu")
    assert advice in text and text in drawn.summary
    for told in (*evidence.sites, *evidence.guards):
        assert told in text


def test_evidence_is_read_from_what_runs_leave():
    ends = [Outcome(0, "unfinished"), Outcome(1, "ok")]
    found = evidence_of(RankError("1 s", ends, ended="timed out", difference="at collective 3"))
    assert found.hung and found.difference == "at collective 3"
    assert not evidence_of(RankError("stalled: no", ends, ended="raised")).hung
    healths = {0: Health(1), 1: Health(2, 1, sites=["print at a.py:3"])}
    assert evidence_of(healths).differs == ["breaks", "graphs"]
    counts = pd.DataFrame({"rank": [0, 1], "breaks": [1, 1], "recompiles": [0, 0], "graphs": [2, 2]})
    record = SimpleNamespace(
        counts=lambda: counts,
        breaks=pd.DataFrame({"reason": ["print"], "place": ["a.py:3"]}),
        recompiles=pd.DataFrame({"reason": []}),
    )
    assert evidence_of(record).sites == ["print at a.py:3"] and evidence_of(record).breaks == {0: 1, 1: 1}
    with pytest.raises(
        ValueError, match="triage reads a RankError, a merged record, or Healths by rank, got str"
    ):
        evidence_of("hung")


def test_the_widget_redraws_for_other_evidence():
    shown = Triage(Evidence(breaks={0: 0, 1: 0}, recompiles={0: 0, 1: 0}), "gloo · cpu")
    none = dict.fromkeys(("breaks_0", "breaks_1", "recompiles_0", "recompiles_1"), 0)
    assert "Nothing of this flow" in shown.text
    assert "Order of collectives" in shown.draw(True, **none)[1]
    assert "correctness bug" in shown.draw(False, **{**none, "breaks_1": 1})[1]
    if shown.widget is not None:
        hung, picture = shown.widget.children[0], shown.widget.children[2]
        before = picture.value
        hung.value = True
        assert picture.value != before and "Order of collectives" in shown.widget.children[3].value
        shown.close()

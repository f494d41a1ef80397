"""The ledger drawn: every row is in a bar of its lesson and status, and the pages show what was asked for."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.ledger.figures import LOOKS, ROWS, across, browser, figure, page
from labkit.report import Report
from labkit.study.versions import moved

STATUSES = ("holds", "holds", "changed", "cannot tell here", "not run")


def report(statuses=STATUSES, lessons=("04_cliff", "05_trap")):
    rows = [
        {
            "id": f"doc.{lesson}.{i}",
            "lesson": lesson,
            "status": status,
            "claim": f"Claim {i} costs $5.",
            "claimed": "3 graphs" if i else "",
            "measured": "4 graphs" if status in STATUSES[:3] else "",
            "missing": "needs a GPU" if "tell" in status else "",
            "origin": "" if status == "not run" else "run now",
        }
        for lesson in lessons
        for i, status in enumerate(statuses)
    ]
    return Report("ledger", "t", "gloo · cpu", {"lines": pd.DataFrame(rows)})


def texts(fig):
    return [t.get_text() for t in fig.texts] + [t.get_text() for ax in fig.axes for t in ax.texts]


def test_the_bars_are_as_long_as_there_are_rows():
    fig = figure(report())
    ax = next(ax for ax in fig.axes if ax.get_xlabel() == "claims")
    bars = {patch.get_gid(): patch.get_width() for patch in ax.patches}
    assert bars == {
        f"{status} {line}": 2 if status == "holds" else 1
        for status in dict.fromkeys(STATUSES)
        for line in (0, 1)
    }
    assert texts(fig)[0] == "4 claims hold, 2 changed, 4 not told"
    assert "10 rows: 8 run now, 2 not run." in texts(fig)
    assert "04_cliff: 2 holds, 1 changed, 1 cannot tell here, 1 not run" in fig.summary
    assert "gloo · cpu" in fig.summary


def test_what_is_enforced_or_cited_has_a_colour_of_its_own_and_is_not_counted_as_holding():
    fig = figure(report(["holds", "enforced", "cited", "cited", "not run"], ["04_cliff"]))
    assert texts(fig)[0] == "1 claim holds, 1 is enforced, 2 are cited, 1 not told"
    assert "04_cliff: 1 holds, 1 enforced, 2 cited, 1 not run" in fig.summary
    assert len({colour for colour, _ in LOOKS.values()}) == len(LOOKS)
    assert texts(figure(report(["cited"], ["04_cliff"])))[0] == "1 is cited"


def test_nothing_run_is_nothing_that_holds():
    fig = figure(report(["not run"]))
    assert texts(fig)[0] == "No claim was measured yet" and "holds" not in fig.summary
    assert (
        "No claim was looked at" in figure(Report("l", "t", "", {"lines": report().frame.iloc[:0]})).summary
    )


def test_statuses_differ_without_their_colours():
    assert len({hatch for colour, hatch in LOOKS.values() if hatch}) == 2
    assert {name for name, (_, hatch) in LOOKS.items() if hatch} == {"not run", "not yet tested"}


@pytest.mark.parametrize("draw", [figure, page])
def test_what_is_no_ledger_is_refused(draw):
    with pytest.raises(ValueError, match="has no table 'lines': it has main"):
        draw(Report("x", "t", "", {"main": pd.DataFrame({"n": [1]})}))
    with pytest.raises(ValueError, match="has the status 'maybe'"):
        draw(report(["maybe"]))


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, 10), ({"lesson": "04"}, 5), ({"lesson": "04_cliff", "status": "holds"}, 2), ({"words": "GPU needs"}, 2),
        ({"status": "changed", "words": "4 GRAPHS trap"}, 1), ({"words": "(("}, 0),
    ],
)  # fmt: skip
def test_a_page_holds_the_rows_that_were_asked_for(asked, count):
    fig, text = page(report(), **asked)
    if not count:
        assert text.startswith("no row matches") and "nothing to draw" in " ".join(texts(fig))
        return
    assert text.startswith(f"{count} rows: ") and len(text.split(" | ")) == 1 + min(count, ROWS)
    assert ("(page 1 of 2)" in text) == (count > ROWS)


def test_the_second_page_shows_the_rest_and_there_is_no_third():
    assert len(page(report(), number=2)[1].split(" | ")) == 1 + 10 - ROWS
    with pytest.raises(ValueError, match="there is no page 3: there are 2"):
        page(report(), number=3)
    with pytest.raises(ValueError, match="no row has the lesson '09': there are 04_cliff, 05_trap"):
        page(report(), lesson="09")


def test_a_row_of_another_run_is_not_said_to_be_from_here():
    given = report(["holds"], ["04_cliff"])
    given.frame["origin"] = "recorded on a box, 2026-01-02"
    fig, text = page(given)
    assert "recorded on a box, 2026-01-02: 4 graphs" in texts(fig) and "(recorded on a box" in text


def test_the_controls_choose_and_a_page_that_is_not_there_is_said():
    pytest.importorskip("ipywidgets")
    shown = browser(report(), status="holds")
    lesson, status, words, number, picture, text = shown.widget.children
    assert status.value == "holds" and text.value == "<small>4 rows: holds</small>"
    before = picture.value
    status.value, lesson.value = "all", "05_trap"
    assert text.value == "<small>5 rows: 05_trap</small>" and picture.value != before
    number.value = 2
    assert "there is no page 2" in text.value
    shown.close()
    assert shown.figure.summary and repr(shown).startswith("4 rows: holds")


def test_versions_stand_side_by_side_with_their_words():
    table = pd.DataFrame(
        {
            "2.13.0": ["holds", "changed", "holds", "holds"],
            "2.15.0": ["changed", "changed", "cannot tell here", "not provoked"],
        },
        index=["doc.moved", "doc.old", "doc.busy", "doc.rare"],
    )
    fig = across(table, moved(table), "recorded", most=2)
    assert texts(fig)[0] == "1 of 4 claims come out differently on different versions of torch"
    assert "doc.moved: holds on 2.13.0, changed on 2.15.0" in fig.summary and "doc.busy" not in fig.summary
    with pytest.raises(ValueError, match="no torch version is recorded"):
        across(pd.DataFrame(index=["doc.a"]), pd.Series(dtype=bool), "recorded")

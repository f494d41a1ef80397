"""Every figure says in words what it shows, and a saved notebook keeps these words."""

from __future__ import annotations

import base64
import re

import nbformat
import pytest

from course.cliff import figures as cliff
from course.cliff.figures import breakdown
from labkit.views import ratios, strip, timings
from tools import fit


def drawn(report):
    return {which: cliff.figure(report, which) for which in cliff._FIGURES}


def test_every_figure_has_its_finding_its_numbers_and_its_label(report):
    found = {which: figure.summary for which, figure in drawn(report).items()}
    for which, figure in drawn(report).items():
        assert found[which].startswith(figure.texts[0].get_text()[:20]), which
        assert re.search(r"\[.*gloo · cpu.*\]$", found[which]) and "\n" not in found[which], which
    assert "B: every rank: 4 regions, 4 collectives, 4 breaks |" in found["strip"]
    assert "graph breaks in every forward: B 4, C 0." in found["counts"]
    assert "Medians, gloo · cpu: B 20.9 ms, C 10.5 ms." in found["timings"]
    assert "Ratios of times, gloo · cpu: C against B 0.50 (faster)." in found["ratios"]
    assert (
        "B: compute 40%, region entry & exit 60%; C: compute 95%, cache lookup & guards 5%."
        in found["breakdown"]
    )
    assert "Frames per second, the source: 2x H200, NCCL: B 10, C 25." in found["source"]


def test_one_strip_says_each_rank_and_the_difference(diverged):
    said = strip(diverged).summary
    assert said.startswith(
        "Ranks 0 and 1 part ways at step 4 of this forward. Fragment strip: rank 0: 4 regions"
    )
    assert "rank 1: nothing more" in said


def test_ranks_that_counted_differently_are_both_said(report):
    counts = report.tables["counts"]
    counts.loc[(counts["variant"] == "B") & (counts["rank"] == 1), "regions"] = 3
    assert "compiled regions in every forward: B 4 and 3, C 1." in cliff.figure(report, "counts").summary


@pytest.mark.parametrize("draw", [ratios, timings, breakdown])
def test_a_figure_of_nothing_says_so(draw):
    import pandas as pd

    columns = ["variant", "rank", "round", "seconds", "kind", "us"]
    empty = [] if draw is ratios else pd.DataFrame(columns=columns)
    assert draw(empty).summary.startswith(("Nothing was compared", "No sample", "No forward"))


def shown(thing):
    """What a kernel would save of `thing` as the last line of a cell."""
    from IPython.core.formatters import DisplayFormatter

    data, metadata = DisplayFormatter().format(thing)
    data["image/png"] = base64.b64encode(data["image/png"]).decode()
    output = nbformat.v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    return nbformat.v4.new_code_cell("x", execution_count=1, outputs=[output])


def test_a_notebook_keeps_the_summary_as_alt_text_and_plain_text(broken):
    figure = strip(broken)
    cell = shown(figure)
    (output,) = cell.outputs
    assert output.metadata["image/png"]["alt"] == output.data["text/plain"] == figure.summary
    assert fit.alt_text(cell, 0) == figure.summary


def test_a_figure_without_a_summary_is_still_shown():
    from labkit.views.style import Figure

    cell = shown(Figure())
    assert re.fullmatch("<Figure .*>", cell.outputs[0].data["text/plain"]) and fit.alt_text(cell, 0) == ""

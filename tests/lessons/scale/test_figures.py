"""The pictures of worlds that are not here: what is simulated, a model's, or measured is labelled so, in words too."""

from __future__ import annotations

import pytest

from course.scale import figures as scale
from course.scale import tables as scale_tables
from course.scale.figures import half_at
from course.shared.costs import Compute, Link, terms
from labkit.report import Report

BLOCK = (128, 128, 131072, 131072)
PLANTED, WORK = Link(2e-5, 1e-9), Compute(1e-3, 2e10)


def trace(world: int, rank: int = 0) -> dict:
    each = [
        {"operation": "all_reduce", "reduction": "sum", "shape": [n], "dtype": "float32", "bytes": n}
        for n in (BLOCK if world > 1 else ())
    ]
    for one in each:
        one["sent"] = terms("all_reduce", world, one["bytes"])[1]
    return {
        "world_size": world, "rank": rank, "collectives": each, "graph": "g", "digest": "d" if world > 1 else "e",
        "nodes": 9, "flops": int(8e8 / world), "weight_bytes": 4, "seconds": 0.5, "cpu_seconds": 0.4, "peak_mib": 300.0,
    }  # fmt: skip


def rank_on(link: Link, world: int, slow: float = 1.0) -> dict:
    """What a rank would have measured if the model were right, `slow` times as slow in the block."""
    ms = WORK.seconds(8e8 / world) + sum(link.seconds("all_reduce", world, n) for n in BLOCK)
    return {
        "sweep": {n: [link.seconds("all_reduce", world, n) * f for f in (0.9, 1, 1.2)] for n in (128, 4096, 2**20)},
        "step": [ms * slow * f for f in (0.95, 1, 1.3)],
        "inside": [[ms * slow / 16] * 4] * 3,
        "sent": ({}, {}),
        "error": 0.0,
    }  # fmt: skip


def made(measured: bool = True, worlds=(1, 2, 4, 1024), slow: float = 1.25, work=None, unit="core") -> Report:
    links = (
        {("gloo · cpu", n): {r: rank_on(PLANTED, n, slow) for r in range(n)} for n in (2, 4)}
        if measured
        else {}
    )
    work = work or ({n: [WORK.seconds(8e8 / n)] * 3 for n in (2, 16)} if measured else {})
    traces = [trace(w) for w in worlds]
    stated = (None, None) if measured else (PLANTED, WORK)
    found = {"traces": traces, "links": links, "work": work}
    tables, notes = scale_tables.tables(found, *stated, "ring", 2, unit)
    label = "simulated, model, gloo · cpu" if measured else "simulated, model"
    return Report("scale", "t", label, tables, [], {"units": 2}, notes, "course.scale.figures:figure")


def step_axes(figure):
    return next(ax for ax in figure.axes if ax.get_label() == "step gloo · cpu")


def test_the_figure_says_that_it_is_a_model_and_which_points_are_measured():
    figure = made().figure()
    assert figure.summary.endswith("[modelled]") and figure.png()[:4] == b"\x89PNG"
    assert "gloo · cpu, 2 ranks measured:" in figure.summary
    assert "gloo · cpu, 4 ranks measured, ranks share cores:" in figure.summary  # four ranks on two cores


def test_where_launches_take_longer_than_the_work_what_was_measured_is_kept():
    report = made(work={2: [1e-3] * 3, 16: [2e-3] * 3}, unit="GPU")
    assert any("no rate of work was fitted: more work took no more time" in note for note in report.notes)
    assert len(report.tables["check"]) == 0 and len(report.tables["sweep"]) and len(report.tables["steps"])
    assert not any("core" in text for text in report.tables["assumptions"].to_numpy().ravel())
    assert report.figure().png()[:4] == b"\x89PNG"


def test_a_recorded_model_stays_a_model():
    assert "[modelled, recorded on" in made().recorded().figure().summary


def test_the_curve_is_the_model_on_a_dense_grid():
    (total,) = (line for line in step_axes(made().figure()).lines if line.get_linestyle() == "-")
    worlds = [int(p) for p in total.get_xdata()]
    assert len(worlds) > 150 and worlds[:64] == list(range(1, 65)) and worlds[-1] == 1024
    right = [
        WORK.seconds(8e8 / p) + sum(PLANTED.seconds("all_reduce", p, n) for n in BLOCK if p > 1)
        for p in worlds
    ]
    assert list(total.get_ydata()) == pytest.approx([1e3 * s for s in right], rel=0.01)


def test_shares_and_where_they_pass_a_half_are_read_off_the_dense_grid():
    report = made()
    model = report.tables["model"].set_index("world_size")
    (ax,) = (ax for ax in report.figure().axes if ax.get_ylabel() == "communication's share")
    curve = list(ax.lines[0].get_ydata())
    assert curve == sorted(curve) and curve[0] == 0
    half = half_at(model)
    assert model.loc[half, "share"] >= 0.5 > model.loc[: half - 1, "share"].max() and half not in (4, 1024)
    assert f"communication is half of it from {half:,} on" in report.figure().summary


def test_notes_say_where_ranks_share_cores():
    notes = [note for note in made().notes if "off by" in note and "ranks: model" in note]
    assert all(note.endswith("ranks share cores") == ("4 ranks: model" in note) for note in notes) and notes


def test_a_report_without_measurements_has_a_curve_and_no_points():
    said = made(measured=False).figure().summary
    assert said.endswith("[modelled]") and "measured:" not in said


def test_a_world_of_one_alone_has_no_communication():
    assert "communication is never half of it" in made(measured=False, worlds=(1,)).figure().summary


def test_a_missing_table_is_named():
    with pytest.raises(ValueError, match="no table 'model': it has other"):
        scale.figure(Report("e", "t", "x", {"other": made().frame}))

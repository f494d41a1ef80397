"""The pictures of worlds that are not here: what is simulated, a model's, or measured is labelled so, in words too."""

from __future__ import annotations

import math

import pytest

from labkit.lessons.scale import figures as scale
from labkit.lessons.scale import tables as scale_tables
from labkit.lessons.scale.explorer import scale_explorer
from labkit.lessons.shared.costs import Compute, Link, terms
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
    return Report("scale", "t", label, tables, [], {}, notes, "labkit.lessons.scale.figures:figure")


def lines(figure, gid=None):
    return [line for ax in figure.axes for line in ax.lines if gid is None or line.get_gid() == gid]


@pytest.mark.parametrize(
    ("which", "label"),
    [
        ("worlds", "simulated"),
        ("step", "model; points gloo · cpu"),
        ("share", "model; points gloo · cpu"),
        ("fit", "gloo · cpu"),
    ],
)
def test_every_figure_says_what_it_shows_and_what_it_is(which, label):
    figure = made().figure(which)
    assert figure.summary.endswith(f"[{label}]") and figure.png()[:4] == b"\x89PNG"


def test_where_launches_take_longer_than_the_work_what_was_measured_is_kept():
    report = made(work={2: [1e-3] * 3, 16: [2e-3] * 3}, unit="GPU")
    assert any("no rate of work was fitted: more work took no more time" in note for note in report.notes)
    assert len(report.tables["check"]) == 0 and len(report.tables["sweep"]) and len(report.tables["steps"])
    assert not any("core" in text for text in report.tables["assumptions"].to_numpy().ravel())
    for which in ("worlds", "step", "share", "fit"):
        assert report.figure(which).png()[:4] == b"\x89PNG"


def test_a_recorded_model_stays_a_model():
    assert "[model, recorded on" in made().recorded().figure("share").summary


def test_what_is_simulated_shows_no_time():
    said = made().figure("worlds").summary
    assert "4 all-reduces still, 2 times the bytes, for 1/512 of the work" in said
    assert "steps of the rings: 1,023 times as many" in said and "flops: 400 Mflop to 0.781 Mflop" in said
    assert " ms" not in said and " us" not in said


def test_the_curve_is_the_model_and_measured_steps_are_points_with_spread():
    figure = made().figure("step")
    (ax,) = (ax for ax in figure.axes if ax.get_label() == "step gloo · cpu")
    total = next(line for line in ax.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 4)
    right = [
        WORK.seconds(8e8 / p) + sum(PLANTED.seconds("all_reduce", p, n) for n in BLOCK)
        for p in (1, 2, 4, 1024)
    ]
    assert list(total.get_ydata()) == pytest.approx([1e3 * s for s in right], rel=0.01)
    assert (
        "2 ranks measured" in figure.summary and "off by -20%" in figure.summary
    )  # 1.25 times as slow as the model
    (shared,) = lines(figure, "shared")
    assert list(shared.get_xdata()) == [4]  # four ranks on two cores
    assert shared.get_ydata()[0] > total.get_ydata()[2]


def test_shares_and_where_they_pass_a_half():
    figure = made().figure("share")
    (curve,) = lines(figure, "model gloo · cpu")
    assert list(curve.get_ydata()) == sorted(curve.get_ydata()) and curve.get_ydata()[0] == 0
    assert "half of a step in the model: gloo · cpu: 1,024 ranks" in figure.summary
    assert "2 ranks measured: 25%, 20% to 26%, and 25% with waiting" in figure.summary


def test_the_fit_says_its_constants_and_how_far_it_is_off():
    said = made().figure("fit").summary
    assert "gloo · cpu, 2 ranks: alpha 20 us a step, 1 GB/s, at worst 0% off" in said


def test_a_report_without_measurements_has_a_curve_and_no_points():
    report = made(measured=False)
    assert (
        report.figure("step").summary.endswith("[model]") and "measured:" not in report.figure("step").summary
    )
    assert "there is nothing to draw" in " ".join(t.get_text() for t in report.figure("fit").texts)


def test_a_world_of_one_alone_is_no_comparison():
    report = made(measured=False, worlds=(1,))
    assert "No world of two or more was traced" in report.figure("worlds").summary
    assert "never" in report.figure("share").summary


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(
        ValueError, match="no figure 'strip' of this report: there are worlds, step, share, fit"
    ):
        made().figure("strip")
    with pytest.raises(ValueError, match="no table 'worlds': it has other"):
        scale.figure(Report("e", "t", "x", {"other": made().frame}), "worlds")


# --- the widget ---


def test_the_sliders_move_the_model_and_leave_a_static_twin():
    found = scale_explorer(made(), alpha=20, bandwidth=1, rate=20, overhead=50)
    assert found.text.startswith("alpha 20 us a step, 1 GB/s, 20 Gflop/s and 50 us a rank, ring [model]")
    assert found.figure.summary.endswith("[model]") and found.figure.png()[:4] == b"\x89PNG"
    *controls, picture, text = found.widget.children
    before = picture.value
    controls[0].value = 500.0
    assert picture.value != before and "alpha 500 us a step" in text.value
    controls[-1].value = "doubling"
    assert "doubling" in text.value
    found.close()


def test_the_explorer_agrees_with_the_table_of_the_report():
    report = made()
    work = report.tables["constants"].query("link == 'work'").iloc[0]
    found = scale_explorer(report, alpha=20, bandwidth=1, rate=float(work["gflop_per_s"]))
    last = report.tables["model"].query("world_size == 1024").iloc[0]
    assert f"on 1,024 ranks: {last['step_ms']:.3g} ms, {last['share']:.0%} of it communication" in found.text


@pytest.mark.parametrize(
    "given",
    [{"bandwidth": 0}, {"alpha": -1}, {"alpha": math.nan}, {"rate": 0}, {"overhead": -1}, {"algorithm": "x"}],
)
def test_constants_that_are_none_are_refused(given):
    with pytest.raises(ValueError, match="must be|unknown algorithm"):
        scale_explorer(made(), **given)

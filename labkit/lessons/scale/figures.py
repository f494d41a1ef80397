"""Worlds that are not here, drawn: what grows and shrinks with the number of ranks; the model beside measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from labkit.lessons.shared.sizes import size
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

__all__ = ["curve_of", "figure", "half_at", "key", "labelled", "rank_axis"]

SIMULATED, MODEL = "simulated", "model"
COMPUTE, TALK, TOTAL = style.KINDS["compute"][0], style.KINDS["collective"][0], style.INK
LINKS = ((TALK, "-", "o"), (COMPUTE, "--", "s"), ("#009E73", ":", "^"), ("#CC79A7", "-.", "D"))
HIGH = 2.6


def figure(report: Any, which: str = "step", **options: Any) -> Figure:
    """Draw one figure of a scale report.

    `which`: 'worlds' (what a rank does, by the number of ranks; simulated, so without times), 'step' (the model's step
    and its two parts, with what was measured), 'share' (the communication's share of it) or 'fit' (the sweep behind
    alpha and beta). Other options go to the view. Raises ValueError for an unknown figure, or a table that is missing.
    """
    draw = _FIGURES.get(which)
    if draw is None:
        raise ValueError(f"no figure {which!r} of this report: there are {', '.join(_FIGURES)}")
    return draw(report, **options)


@styled
def worlds(report: Any) -> Figure:
    """Draw what one rank does by world size, against the smallest: collectives, bytes sent, steps of a ring, flops."""
    shown = table(report, "worlds", ["world_size", "rank", "collectives", "sent_bytes", "flops"])
    shown = shown[(shown["rank"] == 0) & (shown["world_size"] > 1)].sort_values("world_size")
    label = labelled(report, SIMULATED)
    sheet = Sheet()
    if shown.empty:
        return empty_figure(sheet, "No world of two or more was traced", label)
    first, last = shown.iloc[0], shown.iloc[-1]
    sheet.title(
        f"From {first['world_size']:,.0f} to {last['world_size']:,.0f} ranks: {last['collectives']:.0f} all-reduces "
        f"still, {last['sent_bytes'] / first['sent_bytes']:.3g} times the bytes, for "
        f"1/{first['flops'] / last['flops']:,.0f} of the work",
        f"One rank, one forward of one block, against a world of {first['world_size']:.0f}.",
    )
    size_of = shown["world_size"].to_numpy(dtype=float)
    lines = {
        "steps of the rings": (size_of - 1, "#CC79A7", "-.", "D"),
        "bytes sent": (shown["sent_bytes"].to_numpy(), TALK, "-", "o"),
        "all-reduces": (shown["collectives"].to_numpy(), TOTAL, ":", "^"),
        "flops": (shown["flops"].to_numpy(), COMPUTE, "--", "s"),
    }
    ax = sheet.axes(0.85, sheet.width - 3.35, HIGH)
    ax.set(xscale="log", yscale="log", ylabel="times as much as on the first", xlabel="ranks")
    ax.set_label("worlds")
    units = {"bytes sent": "sent_bytes", "all-reduces": "collectives", "flops": "flops"}
    for name, (values, colour, line, marker) in lines.items():
        against = np.asarray(values, dtype=float) / values[0]
        ax.plot(size_of, against, line, color=colour, marker=marker, markersize=5, linewidth=1.6)
        said = f"{name}: {against[-1]:,.0f} times as many"
        if name in units:
            said = f"{name}: " + " to ".join(_amount(name, shown.iloc[i][units[name]]) for i in (0, -1))
        _at_the_end(ax, size_of[-1], against[-1], said, colour)
        sheet.say(said)
    rank_axis(ax, size_of)
    sheet.top += 0.5
    return sheet.finish(label, "Flops of matrix products. Bytes: what a ring's all_reduce sends.")


def _amount(name: str, value: float) -> str:
    if name == "bytes sent":
        return size(round(float(value) / 1024, 1) * 1024 if value >= 1024 else float(value))
    if name == "flops":
        return f"{value / 1e6:,.3g} Mflop" if value < 1e9 else f"{value / 1e9:,.3g} Gflop"
    return f"{value:g}"


@styled
def steps(report: Any) -> Figure:
    """Draw the model's step and its two parts by world size, a panel a link; measured steps are points with spread."""
    model = table(
        report, "model", ["link", "world_size", "compute_ms", "communication_ms", "step_ms", "share"]
    )
    seen = table(report, "steps", ["link", "world_size", "ms", "p10", "p90"])
    check = table(report, "check", ["link", "world_size", "constants", "model_ms", "error", "ranks_a_core"])
    label = labelled(report, MODEL, "points", seen)
    sheet = Sheet()
    if model.empty:
        return empty_figure(sheet, "The model has no curve", label)
    panels = list(pd.unique(model["link"]))
    off = check.drop_duplicates(["link", "world_size"])["error"].abs()
    said = f", off by {off.min():.0%} to {off.max():.0%} where it was checked" if len(off) else ""
    best = [model.loc[model[model["link"] == name]["step_ms"].idxmin()] for name in panels]
    at = " and ".join(f"{b['world_size']:,} ranks ({b['link']})" for b in best[:2])
    unit = "core" if report.provenance.get("device", "cpu") == "cpu" else "GPU"
    sheet.title(
        f"The model's step is shortest on {at}{said}",
        f"Lines: the model, with a {unit} for every rank. Points: measured here, median and p10 to p90. "
        f"Crosses: the model for ranks that share {unit}s.",
    )
    sheet.legend(
        [
            ("step", key(TOTAL, "-")), ("work", key(COMPUTE, "--")), ("communication", key(TALK, ":")),
            ("measured step", key(TOTAL, "", "o")), (f"model, {unit}s shared", key("#8C6D31", "", "X")),
        ]
    )  # fmt: skip
    low = min(model[["compute_ms", "communication_ms"]].min().min(), *seen["p10"], np.inf)
    high = max(model["step_ms"].max(), *seen["p90"], 0.0)
    gap, left = 0.55, 0.8
    wide = (sheet.width - left - 0.3 - gap * (len(panels) - 1)) / len(panels)
    top = sheet.top + 0.25
    for i, name in enumerate(panels):
        mine = model[model["link"] == name].sort_values("world_size")
        x = left + i * (wide + gap)
        sheet.text(str(name), left=x, top=sheet.top, fontweight="bold")
        ax = sheet.axes(x, wide, HIGH, top=top)
        ax.set(xscale="log", yscale="log", ylim=(max(low, high * 1e-6) * 0.6, high * 1.7), xlabel="ranks")
        ax.set_label(f"step {name}")
        curve_of(ax, mine)
        here = seen[seen["link"] == name]
        _points(ax, here, "ms", "p10", "p90", TOTAL, "o")
        shared = check[(check["link"] == name) & (check["ranks_a_core"] > 1)].drop_duplicates("world_size")
        ax.plot(shared["world_size"], shared["model_ms"], "X", color="#8C6D31", markersize=8, gid="shared")
        rank_axis(ax, mine["world_size"].to_numpy(dtype=float))
        if i == 0:
            ax.set_ylabel("a step, ms (model)")
        ends = mine.iloc[[0, -1]]
        told = ", ".join(f"{r.step_ms:.3g} ms on {r.world_size:,}" for r in ends.itertuples())
        sheet.say(f"{name}, model: {told} ranks")
        for r in check[check["link"] == name].itertuples():
            sheet.say(
                f"{name}, {r.world_size} ranks: model {r.model_ms:.3g} ms ({r.constants}), off by {r.error:+.0%}"
            )
        for r in here.itertuples():
            sheet.say(f"{name}, {r.world_size} ranks measured: {r.ms:.3g} ms, {r.p10:.3g} to {r.p90:.3g}")
    sheet.top = top + HIGH + 0.5
    return sheet.finish(label)


@styled
def share(report: Any) -> Figure:
    """Draw the communication's share of a step against the world, a line a link, with what was measured."""
    model = table(report, "model", ["link", "world_size", "share"])
    seen = table(report, "steps", ["link", "world_size", "share", "share_p10", "share_p90", "waiting"])
    label = labelled(report, MODEL, "points", seen)
    sheet = Sheet()
    if model.empty:
        return empty_figure(sheet, "The model has no curve", label)
    names = list(pd.unique(model["link"]))
    half = {name: half_at(model[model["link"] == name]) for name in names}
    said = ", ".join(f"{name}: {f'{n:,} ranks' if n else 'never'}" for name, n in half.items())
    sheet.title(
        f"Where communication is half of a step in the model: {said}",
        "Lines: the model. Points: measured without waiting for late peers, median and p10 to p90. Hollow: with it.",
    )
    ax = sheet.axes(0.85, sheet.width - 1.15, HIGH)
    ax.set(xscale="log", ylim=(-0.02, 1.04), xlabel="ranks", ylabel="communication's share")
    ax.set_label("share")
    ax.axhline(0.5, color=style.QUIET, linewidth=1, linestyle=":")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    keys = []
    for i, name in enumerate(names):
        colour, line, marker = LINKS[i % len(LINKS)]
        mine = model[model["link"] == name].sort_values("world_size")
        ax.plot(mine["world_size"], mine["share"], line, color=colour, linewidth=1.8, gid=f"model {name}")
        here = seen[seen["link"] == name]
        _points(ax, here, "share", "share_p10", "share_p90", colour, marker)
        look = {"color": colour, "markersize": 7, "fillstyle": "none", "gid": "waiting"}
        ax.plot(here["world_size"], here["waiting"], marker, **look)
        keys.append((str(name), key(colour, line, marker if len(here) else "")))
        sheet.say(
            f"{name}, model: " + ", ".join(f"{r.share:.0%} on {r.world_size:,}" for r in mine.itertuples())
        )
        for r in here.itertuples():
            sheet.say(
                f"{name}, {r.world_size} ranks measured: {r.share:.0%}, {r.share_p10:.0%} to {r.share_p90:.0%}, and "
                f"{r.waiting:.0%} with waiting"
            )
    rank_axis(ax, model["world_size"].to_numpy(dtype=float))
    sheet.top += 0.5
    sheet.legend(keys, left=0.85)
    return sheet.finish(label)


@styled
def fit(report: Any) -> Figure:
    """Draw the sweep of all_reduce over sizes with its spread, and the fitted line: a panel a link, a line a world."""
    sweep = table(report, "sweep", ["link", "ranks", "bytes", "us", "p10", "p90", "fit_us", "residual"])
    constants = table(report, "constants", ["link", "ranks", "alpha_us", "gbytes_per_s", "worst_residual"])
    label = labelled(report, "", "", sweep)
    sheet = Sheet()
    if sweep.empty:
        return empty_figure(sheet, "No link was measured: its constants are stated", label)
    off = constants.set_index(["link", "ranks"])["worst_residual"].dropna()
    off = off[off.index.get_level_values("link").isin(sweep["link"])]
    sheet.title(
        f"alpha and beta, fitted: the lines miss their points by {off.min():.0%} to {off.max():.0%} at worst",
        "Time of one all_reduce by size: median of interleaved rounds, slowest rank, with p10 to p90. Lines: the fit.",
    )
    panels = list(pd.unique(sweep["link"]))
    gap, left = 0.65, 0.8
    wide = (sheet.width - left - 0.3 - gap * (len(panels) - 1)) / len(panels)
    top = sheet.top + 0.25
    keys: dict[str, Any] = {}
    for i, name in enumerate(panels):
        x = left + i * (wide + gap)
        sheet.text(str(name), left=x, top=sheet.top, fontweight="bold")
        ax = sheet.axes(x, wide, HIGH, top=top)
        ax.set(xscale="log", yscale="log", xlabel="bytes of the message")
        ax.set_label(f"fit {name}")
        part = sweep[sweep["link"] == name]
        for j, (ranks, mine) in enumerate(part.groupby("ranks")):
            colour, line, marker = LINKS[j % len(LINKS)]
            _points(ax, mine, "us", "p10", "p90", colour, marker, at="bytes")
            ax.plot(mine["bytes"], mine["fit_us"], line, color=colour, linewidth=1.5)
            keys[f"{ranks} ranks"] = key(colour, line, marker)
            row = constants[(constants["link"] == name) & (constants["ranks"] == ranks)].iloc[0]
            sheet.say(
                f"{name}, {ranks} ranks: alpha {row['alpha_us']:.3g} us a step, {_bandwidth(row['gbytes_per_s'])}, "
                f"at worst {row['worst_residual']:.0%} off"
            )
        sizes = sorted(set(part["bytes"]))[::2]
        ax.minorticks_off()
        ax.set_xticks(sizes, [size(n) for n in sizes])
        ax.grid(color=style.FAINT, linewidth=0.7)
        if i == 0:
            ax.set_ylabel("one all_reduce, us")
    sheet.top = top + HIGH + 0.5
    sheet.legend(list(keys.items()), left=left)
    return sheet.finish(label)


def curve_of(ax: Axes, mine: pd.DataFrame) -> None:
    """A step and its two parts; a world of one has no communication, and zero is not on a logarithmic axis."""
    ax.plot(mine["world_size"], mine["compute_ms"], "--", color=COMPUTE, linewidth=1.6)
    talk = mine[mine["communication_ms"] > 0]
    ax.plot(talk["world_size"], talk["communication_ms"], ":", color=TALK, linewidth=2)
    ax.plot(mine["world_size"], mine["step_ms"], "-", color=TOTAL, linewidth=2)


def _bandwidth(gbytes_per_s: float) -> str:
    return "no price of a byte to be seen" if pd.isna(gbytes_per_s) else f"{gbytes_per_s:.3g} GB/s"


def _points(
    ax: Axes,
    rows: pd.DataFrame,
    y: str,
    low: str,
    high: str,
    colour: str,
    marker: str,
    at: str = "world_size",
) -> None:
    bars = [rows[y] - rows[low], rows[high] - rows[y]]
    ax.errorbar(
        rows[at], rows[y], yerr=bars, fmt=marker, color=colour, markersize=6, capsize=3, linewidth=1.4,
        markeredgecolor="white", markeredgewidth=0.6,
    )  # fmt: skip


def half_at(curve: pd.DataFrame) -> int | None:
    """The smallest world from which on communication is at least half of every step."""
    below = curve.loc[curve["share"] < 0.5, "world_size"]
    above = curve.loc[curve["world_size"] > (below.max() if len(below) else 0), "world_size"]
    return int(above.min()) if len(above) else None


def rank_axis(ax: Axes, worlds_: np.ndarray) -> None:
    """Ticks at world sizes, at most six of them, and a quiet grid."""
    known = sorted({int(w) for w in worlds_})
    ticks = known if len(known) <= 6 else known[:: -(-len(known) // 5)]
    ax.minorticks_off()
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    ax.grid(color=style.FAINT, linewidth=0.7)


def _at_the_end(ax: Axes, x: float, y: float, text: str, colour: str) -> None:
    ax.annotate(
        text, (x, y), xytext=(9, 0), textcoords="offset points", va="center", color=style.INK,
        fontsize=style.SMALL, annotation_clip=False,
    )  # fmt: skip


def key(colour: str, line: str, marker: str = "") -> Callable[[Axes, float, float], Any]:
    """A legend key: a piece of the line, with its marker in the middle."""
    return lambda ax, x, y: ax.plot(
        [x, x + 0.1, x + 0.2], [y + 0.06] * 3, line or "none", color=colour, linewidth=1.8, marker=marker or None,
        markevery=[1], markersize=5.5,
    )  # fmt: skip


def labelled(report: Any, kind: str, joins: str = "", seen: pd.DataFrame | None = None) -> str:
    """What a figure shows ('model', 'simulated'), and where that which was measured in it was measured."""
    if report.label.startswith("recorded"):
        return ", ".join(filter(None, [kind, report.label]))
    where = ", ".join(map(str, pd.unique(seen["link"]))) if seen is not None and len(seen) else ""
    return "; ".join(filter(None, [kind, f"{joins} {where}".strip() if where else ""]))


_FIGURES: dict[str, Callable[..., Figure]] = {"worlds": worlds, "step": steps, "share": share, "fit": fit}

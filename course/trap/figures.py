"""Figures of the eager trap: what each layer costs, and where the cost shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from labkit.timing import Times
from labkit.views.style import Figure, label_figure, styled

__all__ = ["exposed", "figure", "ladder"]

WIDTH, ROW = 9.0, 0.42  # inches: of a figure, and of a bar
MODE = ", inference_mode"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def figure(report: Any, which: str = "exposed", title: str | None = None, label: str | None = None) -> Figure:
    """Draw the ratio of times, functional over in place, of the model's forward: a row for each kind of evidence.

    Args:
        report: of the eager trap.
        which: 'exposed', the only figure.
        title: instead of the usual one.
        label: instead of the report's.

    Raises:
        ValueError: the figure is unknown, or the report compares nothing.
    """
    if which != "exposed":
        raise ValueError(f"no figure {which!r} of this report: there is exposed")
    return exposed({"": report.verdicts}, report.label if label is None else label, title)


@styled
def exposed(verdicts: Mapping[str, Iterable[Any]], label: str, title: str | None = None) -> Figure:
    """Draw the verdicts of functional against in place, by machine, as ratios with their 99 % intervals.

    Args:
        verdicts: by machine; only those of functional against in place are drawn.
        label: where the numbers are from.
        title: instead of the usual one.

    Raises:
        ValueError: there is no such verdict.
    """
    rows = [
        (", ".join(part for part in (machine, verdict.evidence) if part), verdict)
        for machine, mine in verdicts.items()
        for verdict in mine
        if (getattr(verdict, "a", ""), getattr(verdict, "b", "")) == ("functional", "in place")
    ]
    if not rows:
        raise ValueError("this report has no verdict of functional against in place")
    fig = Figure(figsize=(WIDTH, 1.3 + ROW * len(rows)), layout="constrained")
    ax = fig.subplots()
    for y, (_, found) in enumerate(rows):
        colour = GREY if found.outcome == "cannot tell" else ORANGE
        ax.plot([found.low, found.high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
        ax.plot([found.ratio], [y], "o", color=colour, markersize=6)
        ax.annotate(
            f"{found.ratio:.2f}, {found.outcome}", (found.high, y), (6, 0), textcoords="offset points", va="center"
        )  # fmt: skip
    ax.axvline(1, color=GREY, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 1.35 * max(found.high for _, found in rows))
    ax.set_xlabel("time of an eager forward, functional / in place")
    slower = sum(found.outcome == "slower" for _, found in rows)
    title = title or f"Functional against in place, in eager: slower in {slower} of {len(rows)} cases"
    said = "; ".join(f"{name}: {v.ratio:.2f} ({v.low:.2f} to {v.high:.2f}), {v.outcome}" for name, v in rows)
    return _ended(fig, ax, title, label, said)


def added(times: Times, collectives: int) -> pd.DataFrame:
    """Microseconds that each variant takes longer than *in place* in its mode, for one collective."""
    rows = {}
    for name in times.variants:
        base = f"in place{MODE}" if name.endswith(MODE) else "in place"
        if name != base:
            found, us = times.compare(name, base), times.median[base] * 1e6 / collectives
            ends = ((end - 1) * us for end in (found.ratio, found.low, found.high))
            rows[name] = [*ends, str(found.outcome)]
    return pd.DataFrame.from_dict(rows, orient="index", columns=["more", "low", "high", "said"])


@styled
def ladder(times: Times, collectives: int) -> Figure:
    """Draw what each rung of the ladder takes longer than in place in its mode, for one collective."""
    extra = added(times, collectives)
    fig = Figure(figsize=(WIDTH, 1.3 + ROW * len(extra)), layout="constrained")
    ax = fig.subplots()
    ax.barh(range(len(extra)), extra["more"], color=BLUE, height=0.55)
    ax.hlines(range(len(extra)), extra["low"], extra["high"], color="#222222", linewidth=1)
    for y, row in enumerate(extra.itertuples()):
        ax.annotate(
            f"{row.more:+.0f}", (max(row.high, 0), y), (6, 0), textcoords="offset points", va="center"
        )
    ax.axvline(0, color=GREY, linewidth=1)
    ax.set_yticks(range(len(extra)), list(extra.index))
    ax.set_ylim(len(extra) - 0.5, -0.5)
    ax.margins(x=0.15)
    ax.set_xlabel("µs more than in place in the same mode, for a collective and one use (99% interval)")
    more = f"{extra.more['functional']:.0f} µs more than in place"
    title = f"Eager, on this host: a functional all_reduce and one use cost {more}"
    said = "; ".join(f"{row.Index}: {row.more:+.0f} µs, {row.said}" for row in extra.itertuples())
    return _ended(fig, ax, title, times.evidence, said)


def _ended(fig: Figure, ax: Any, title: str, label: str, said: str) -> Figure:
    ax.spines[["top", "right"]].set_visible(False)
    fig.get_layout_engine().set(rect=(0, 0.08, 1, 0.92))
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
    label_figure(fig, label)
    fig.summary = f"{title}. {said}. [{label}]"
    return fig

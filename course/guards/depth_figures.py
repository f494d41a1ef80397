"""Compile time over depth: the first call of each form, its spread, and the line that was fitted."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

__all__ = ["figure"]

HEIGHT, GAP = 3.4, 14  # of the axes, in inches; between labels, in points
MARKS = {"o": "●", "s": "■", "^": "▲"}  # in a label, as on its line
# a form: its colour and its mark
LOOKS = {"whole": ("#D55E00", "o"), "block by block": ("#009E73", "s"), "nested region": ("#0072B2", "^")}


@styled
def figure(report: Any) -> Figure:
    """Draw a report of `course.guards.depth.growth`: seconds of the first call over the number of blocks.

    A mark is the median over rounds, its bar reaches from the tenth to the ninetieth percentile, the line is the median
    of the rounds' own fits.
    Raises ValueError for a missing table.
    """
    summary = table(report, "summary", ["depth", "form", "p10_s", "median_s", "p90_s", "n"])
    columns = "form first_s per_block_s per_block_low per_block_high exponent low high"
    fits = table(report, "fits", columns.split())
    sheet = Sheet()
    if summary.empty:
        return empty_figure(sheet, "No model was compiled", report.label)
    compiler = report.provenance.get("compiler", "?")
    what = "Dynamo alone" if compiler == "eager" else f"backend {compiler}"
    sheet.title(
        _finding(report, fits),
        f"First call, compiled from nothing, {what}; median, tenth to ninetieth percentile, n={summary['n'].min()}. "
        "Right: the fitted growth, median of the rounds' own lines with its 99% interval.",
    )
    ax = sheet.axes(0.75, 5.6, HEIGHT)
    labels: list[tuple[float, str]] = []
    for i, (form, rows) in enumerate(summary.groupby("form", sort=False)):
        colour, mark = LOOKS.get(str(form), ("#666666", "D"))
        rows = rows.sort_values("depth")
        bars = [rows["median_s"] - rows["p10_s"], rows["p90_s"] - rows["median_s"]]
        shifted = rows["depth"] + (i - 1) * 0.06  # so that bars do not cover each other
        ax.errorbar(
            shifted, rows["median_s"], yerr=bars, fmt=mark, color=colour, markersize=6, capsize=2, linewidth=1
        )
        line = fits[fits["form"] == form].iloc[0]
        ends = [rows["depth"].min(), rows["depth"].max()]
        fitted = [line["first_s"] + line["per_block_s"] * d for d in ends]
        ax.plot(ends, fitted, color=colour, linewidth=1.2, alpha=0.7)
        ends_ms = f"{line['per_block_low'] * 1e3:z.0f} to {line['per_block_high'] * 1e3:z.0f}"
        text = f"{form}: {line['per_block_s'] * 1e3:z.0f} ms a block ({ends_ms})"
        labels.append((fitted[1], f"{MARKS.get(mark, '◆')} {text}"))
        power = f"exponent {line['exponent']:.2f} ({line['low']:.2f} to {line['high']:.2f})"
        medians = ", ".join(
            f"{d} blocks {m:.2f} s" for d, m in zip(rows["depth"], rows["median_s"], strict=True)
        )
        sheet.say(f"{text}, {line['first_s']:.2f} s at no block, {power}: {medians}")
    ax.set(ylim=(0, None), xlabel="blocks", ylabel="seconds of the first call")
    ax.set_xticks(sorted(set(summary["depth"])))
    _label(ax, labels)
    ax.grid(axis="y", color=style.FAINT)
    sheet.top += 0.5
    return sheet.finish(report.label)


def _label(ax: Any, labels: list[tuple[float, str]]) -> None:
    """A label at the end of each line, moved up where it would cover the one below."""
    points, floor = HEIGHT * 72 / ax.get_ylim()[1], -float("inf")
    for y, text in sorted(labels):
        floor = max(y * points, floor + GAP)
        ax.annotate(
            text, (1, y), xycoords=("axes fraction", "data"), textcoords="offset points",
            xytext=(6, floor - y * points), va="center", annotation_clip=False,
            fontsize=style.SMALL + 0.5, color=style.INK, fontweight="bold",
        )  # fmt: skip


def _finding(report: Any, fits: pd.DataFrame) -> str:
    by = fits.set_index("form")["per_block_s"]
    if "whole" not in by:
        return "Compile time over depth"
    slopes = table(report, "slopes", ["a", "b", "outcome"])
    told = slopes[slopes["b"] == "whole"].set_index("a")["outcome"]
    others = [
        f"{name} {value * 1e3:z.0f} ({told.get(name, '?')})" for name, value in by.items() if name != "whole"
    ]
    return f"A further block costs the whole model {by['whole'] * 1e3:z.0f} ms; {', '.join(others)}"

"""The same experiment on several machines, or before and after: each comparison once, with a mark a machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from labkit.views import style
from labkit.views.rows import empty
from labkit.views.style import Figure, Sheet, styled

__all__ = ["machines"]

LEFT, ROW, MARK = 2.1, 0.2, 0.17  # inches: the names, around a row, and what each machine takes of it
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHAPES = "osD^vPX"
TICKS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)


@styled
def machines(*reports: Any, title: str | None = None) -> Figure:
    """Overlay the verdicts of reports of one experiment: time ratios and intervals, a mark a machine and link.

    Left of 1 the first of a pair took less time. Ratios can be compared across machines where times cannot. Filled:
    told from noise. Raises ValueError for no report, reports of different experiments, and one without verdicts.

    >>> from labkit.report import Report
    >>> from labkit.timing import Verdict
    >>> ratio = dict(a="C", b="B", low=0.4, high=0.6, n=30, outcome="faster")
    >>> def of(machine, ratio_):
    ...     verdict = Verdict.from_dict({**ratio, "ratio": ratio_, "confidence": 0.99})
    ...     return Report("cliff", "The cliff", machine, {}, [verdict])
    >>> machines(of("recorded on a laptop", 0.5), of("nccl", 0.4)).summary.split(". ")[-2]
    'C against B: 0.50 (recorded on a laptop), 0.40 (nccl)'
    """
    if not reports:
        raise ValueError("there is nothing to overlay: give reports of one experiment")
    names = list(dict.fromkeys(report.name for report in reports))
    if len(names) > 1:
        raise ValueError(f"reports of one experiment can be overlaid, and these are of {', '.join(names)}")
    found: dict[str, list[tuple[str, Any]]] = {}
    for report in reports:
        seen = list(_verdicts(report))
        if not seen:
            raise ValueError(f"the report of {report.label!r} has no verdicts to overlay")
        for pair, where, verdict in seen:
            found.setdefault(pair, []).append((where, verdict))
    series = list(dict.fromkeys(where for marks in found.values() for where, _ in marks))
    if len(series) > len(COLOURS):
        raise ValueError(f"at most {len(COLOURS)} machines and links in one picture, got {len(series)}")
    sheet = Sheet()
    if not any(_drawn(v) for marks in found.values() for _, v in marks):
        return empty(sheet, title, "No ratio is finite: too few rounds", reports[0].label)
    sheet.title(
        title or _finding(found, series),
        "Time ratio of the first to the second, with its 99 % interval, logarithmic; below 1 the first is faster. "
        "Filled: told from noise.",
    )
    looks = dict(zip(series, zip(COLOURS, SHAPES, strict=True), strict=False))
    heights = [ROW + MARK * len(series) for _ in found]
    ax = sheet.axes(LEFT, sheet.width - LEFT - 0.4, sum(heights), top=sheet.top + 0.05)
    for row, (pair, marks) in enumerate(found.items()):
        for where, verdict in marks:
            if not _drawn(verdict):
                continue
            colour, shape = looks[where]
            y = row + (series.index(where) + 1) / (len(series) + 1)
            low, high = (
                v if math.isfinite(v) and v > 0 else verdict.ratio for v in (verdict.low, verdict.high)
            )
            ax.plot([low, high], [y, y], color=colour, linewidth=2.4, alpha=0.5, solid_capstyle="butt")
            filled = verdict.outcome in ("faster", "slower")
            ax.plot(
                verdict.ratio,
                y,
                shape,
                color=colour,
                markersize=6,
                markerfacecolor=colour if filled else "white",
            )
        sheet.say(f"{pair}: " + ", ".join(f"{v.ratio:.2f} ({w})" for w, v in marks if _drawn(v)))
        if row:
            ax.axhline(row, color=style.QUIET, linewidth=0.4, alpha=0.5)
    ax.axvline(1, color=style.INK, linewidth=0.9)
    ax.set(xscale="log", ylim=(len(found), 0), xlabel="time ratio")
    ax.set_yticks(
        [row + 0.5 for row in range(len(found))], [pair.replace(" against ", "\nagainst ") for pair in found]
    )
    ticks = [t for t in TICKS if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.tick_params(axis="y", length=0, labelsize=style.SMALL + 0.5, labelcolor=style.INK)
    sheet.top += sum(heights) + 0.65
    sheet.legend([(where, _mark(*looks[where])) for where in series])
    return sheet.finish(f"{len(reports)} reports of {names[0]}")


def _verdicts(report: Any) -> Iterator[tuple[str, str, Any]]:
    """Pair, machine and link, and verdict: what a verdict was measured on is the machine's, its case the pair's."""
    for verdict in report.verdicts:
        if not hasattr(verdict, "ratio"):
            continue
        case = replace(verdict, evidence="").where
        pair = f"{verdict.a} against {verdict.b}" + (f", {case}" if case else "")
        on_label = verdict.evidence in ("", report.label)
        yield pair, report.label if on_label else f"{report.label}, {verdict.evidence}", verdict


def _drawn(verdict: Any) -> bool:
    return math.isfinite(verdict.ratio) and verdict.ratio > 0


def _finding(found: dict[str, list[tuple[str, Any]]], series: list[str]) -> str:
    everywhere = [marks for marks in found.values() if len({where for where, _ in marks}) == len(series) > 1]
    agree = sum(len({verdict.outcome for _, verdict in marks}) == 1 for marks in everywhere)
    if not everywhere:
        return f"{len(found)} comparisons on {len(series)} machine{'s' * (len(series) != 1)} and links"
    return f"{agree} of {len(everywhere)} comparisons have the same verdict everywhere"


def _mark(colour: str, shape: str) -> Any:
    def draw(ax: Any, x: float, y: float) -> Any:
        return ax.plot(x + 0.1, y + 0.06, shape, color=colour, markersize=6)[0]

    return draw

"""The eager trap's report as figures: verdicts by size, where a call's time goes, the crossover, beside the source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.lessons.shared.sizes import size
from labkit.lessons.shared.sizes_figures import crossover, labels, source
from labkit.views import style
from labkit.views.matrix import Cell, matrix
from labkit.views.style import (
    NAME_WIDTH,
    Figure,
    Sheet,
    by_evidence,
    empty_figure,
    note_beside,
    panel_heading,
    styled,
)
from labkit.views.tables import table

__all__ = ["KINDS", "OUTCOMES", "figure"]

OUTCOMES = {"slower": "#D55E00", "cannot tell": "#BBBBBB", "faster": "#0072B2"}
STAGES = {"return": "until the call is back", "done": "until the result is there", "control": "A against A"}
# what an operation of a call is there for; Okabe-Ito, in the order in which they are drawn
KINDS = {
    "collective": ("#D55E00", "the collective itself"),
    "python": ("#BBBBBB", "Python"),
    "operator": ("#CC79A7", "dispatch & autograd registration"),
    "allocation": ("#E69F00", "allocation"),
    "copy": ("#009E73", "copy"),
    "wrapping": ("#56B4E9", "wrapping"),
    "wait": ("#F0E442", "wait"),
    "other": ("#4B3F72", "other operations"),
}
ROW = 0.25


def figure(report: Any, which: str = "verdicts", **options: Any) -> Figure:
    """Draw one figure of the eager trap's report.

    `which`: 'verdicts' (a heat strip by size, collective and evidence), 'breakdown' (a call's profile, by what its
    operations are for; `evidence=` chooses), 'ladder' (what each layer adds), 'crossover' (ratios over sizes), or
    'source' (ratios here, the issue's three and the source's two runs). Other options go to the view.

    Raises ValueError for an unknown figure, a table that the report lacks, or a missing column.
    """
    draw = _FIGURES.get(which)
    if draw is None:
        raise ValueError(f"no figure {which!r} of this report: there are {', '.join(_FIGURES)}")
    return draw(report, **options)


@styled
def verdicts(report: Any, title: str | None = None, label: str | None = None) -> Figure:
    """Draw a heat strip: a row for each collective and stage, a column a size, each cell a verdict and its ratio.

    A size that was left out is empty. Raises ValueError for a missing column.
    """
    columns = ["evidence", "collective", "bytes", "stage", "outcome", "ratio"]
    shown = table(report, "verdicts", columns)
    label = labels(report, shown) if label is None else label
    sheet = Sheet()
    if shown.empty:
        return empty_figure(sheet, "Nothing was compared", label, title)
    real = shown[shown["stage"] != "control"]
    tally = real["outcome"].value_counts()
    slower = int(tally.get("slower", 0))
    sheet.title(
        title or f"Functional in eager is slower in {slower} of {len(real)} comparisons",
        "Time of the functional call over that of the in-place one. Grey cannot be told apart from noise.",
    )
    sheet.legend([(words, _patch(colour)) for words, colour in OUTCOMES.items()])
    sizes = sorted(set(shown["bytes"]))
    for name, part in by_evidence(shown):
        panel_heading(sheet, name)
        rows = [(c, s) for s in STAGES for c in pd.unique(part["collective"])]
        rows = [(c, s) for c, s in rows if ((part["collective"] == c) & (part["stage"] == s)).any()]
        cells = [
            Cell(
                rows.index((row["collective"], row["stage"])),
                sizes.index(row["bytes"]),
                OUTCOMES[row["outcome"]],
                f"{row['ratio']:.2f}×" if row["ratio"] < 9.95 else f"{row['ratio']:.0f}×",
                bold=row["outcome"] != "cannot tell",
                gid=row["outcome"],
            )
            for row in part.to_dict("records")
        ]
        heads, lines = [size(n) for n in sizes], [f"{c}, {STAGES[s]}" for c, s in rows]
        matrix(sheet, lines, heads, cells, height=ROW, label=f"verdicts {name}")
        for collective, stage in rows:
            mine = part[(part["collective"] == collective) & (part["stage"] == stage)].sort_values("bytes")
            said = (f"{size(r['bytes'])} {r['outcome']} {r['ratio']:.2f}" for r in mine.to_dict("records"))
            sheet.say(f"{name}, {collective}, {STAGES[stage]}: {', '.join(said)}")
    return sheet.finish(
        label, "Sizes are of the larger tensor of a call: what is reduced, or gathered and scattered, whole."
    )


@styled
def breakdown(
    report: Any, evidence: str | None = None, title: str | None = None, label: str | None = None
) -> Figure:
    """Draw what a profiled call spends on what, in us: a bar for each collective and form, the slowest rank's.

    Raises ValueError for evidence that the report does not have, or a missing column.
    """
    shown = table(report, "breakdown", ["evidence", "collective", "form", "rank", "kind", "us"])
    there = list(pd.unique(shown["evidence"])) if len(shown) else []
    evidence = (
        ("host only" if "host only" in there else next(iter(there), "")) if evidence is None else evidence
    )
    label = evidence if label is None else label
    sheet = Sheet()
    if shown.empty:
        return empty_figure(sheet, "No call was profiled", label, title)
    if evidence not in there:
        raise ValueError(f"no evidence {evidence!r} in table 'breakdown': there are {', '.join(there)}")
    mine = shown[shown["evidence"] == evidence]
    whole = mine.groupby(["collective", "form", "rank"])["us"].sum()
    slowest = whole.groupby(level=["collective", "form"]).idxmax()
    sums = mine.groupby(["collective", "form", "rank", "kind"])["us"].sum()
    bars = {key[:2]: sums.loc[key] for key in slowest}
    first = [pair for pair in bars if pair[0] == "all_reduce"] or list(bars)[:2]
    said = " and ".join(f"{bars[pair].sum():.0f} us {pair[1]}" for pair in sorted(first, reverse=False))
    sheet.title(title or f"One small call, profiled: {first[0][0]} takes {said}")
    used = [kind for kind in KINDS if any(kind in bar.index for bar in bars.values())]
    sheet.legend([(KINDS[kind][1], _patch(KINDS[kind][0])) for kind in used])
    order = [
        (c, f) for c in pd.unique(mine["collective"]) for f in ("in place", "functional") if (c, f) in bars
    ]
    ax = sheet.axes(NAME_WIDTH + 0.5, sheet.width - NAME_WIDTH - 1.5, 0.32 * len(order))
    ax.set(ylim=(len(order), 0))
    for i, pair in enumerate(order):
        start = 0.0
        for kind in used:
            us = float(bars[pair].get(kind, 0.0))
            ax.barh(
                i + 0.5, us, 0.72, start, color=KINDS[kind][0], linewidth=0, gid=f"{kind} {' '.join(pair)}"
            )
            start += us
        note_beside(ax, i + 0.5, f"{start:.0f} us", right=6)
        parts = (f"{KINDS[k][1]} {bars[pair][k]:.1f}" for k in used if k in bars[pair].index)
        sheet.say(f"{pair[0]}, {pair[1]}: {', '.join(parts)} us")
    ax.set_yticks([i + 0.5 for i in range(len(order))], [f"{c}, {f}" for c, f in order])
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    ax.set_xlabel("us of a profiled call, median, slowest rank", labelpad=2)
    sheet.top += 0.5
    return sheet.finish(
        label, "The profiler itself adds to every operation: read shares here, times from a timing."
    )


@styled
def ladder(report: Any, title: str | None = None, label: str | None = None) -> Figure:
    """Draw what each layer adds to a small all-reduce, as steps, one panel for each kind of evidence.

    Raises ValueError for a missing column.
    """
    shown = table(report, "ladder", ["evidence", "step", "us", "added_us"])
    label = labels(report, shown) if label is None else label
    sheet = Sheet()
    if shown.empty:
        return empty_figure(sheet, "No layer was timed", label, title)
    name, part = next((p for p in by_evidence(shown) if p[0] == "host only"), by_evidence(shown)[0])
    most = part.iloc[1:].loc[part.iloc[1:]["added_us"].idxmax()] if len(part) > 1 else part.iloc[0]
    words = str(most["step"]).removeprefix("+ ")
    dearest = f"The dearest layer ({name}): {words}, {most['added_us']:.0f} us a call"
    sheet.title(title or _first_uses(report, name) or dearest)
    for name, part in by_evidence(shown):
        panel_heading(sheet, name)
        rows = part.to_dict("records")
        ax = sheet.axes(NAME_WIDTH + 1.15, sheet.width - NAME_WIDTH - 2.6, 0.27 * len(rows))
        ax.set(ylim=(len(rows), 0))
        ax.set_label(f"ladder {name}")
        for i, row in enumerate(rows):
            added = row["us"] if i == 0 else row["added_us"]
            start = 0.0 if i == 0 else row["us"] - added
            colour = "#666666" if i == 0 else OUTCOMES[row.get("than the step before") or "cannot tell"]
            ax.barh(i + 0.5, added, 0.66, start, color=colour, linewidth=0)
            note_beside(ax, i + 0.5, f"{added:.0f} us" if i == 0 else f"{added:+.0f} us", right=6)
        ax.set_yticks([i + 0.5 for i in range(len(rows))], [row["step"] for row in rows])
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
        ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
        ax.set_xlabel("us a call, median, slowest rank", labelpad=1)
        sheet.top += 0.42
        if total := _added_up(report, name):
            for line in style.wrap(total, sheet.width - 0.4):
                sheet.text(line, left=0.2, color=style.QUIET)
            sheet.top += 0.05
        said = ", ".join(f"{row['step']} {row['us']:.0f}" for row in rows)
        sheet.say(f"{name}, us a call: {said}", total)
    sheet.legend([(f"than the step before: {w}", _patch(c)) for w, c in OUTCOMES.items()])
    return sheet.finish(label)


def _extra(report: Any, evidence: str) -> pd.DataFrame | None:
    """What the model's functional forward takes more, by part; None where it was not measured."""
    if "extra" not in report.tables:
        return None
    extra = table(report, "extra", ["evidence", "part", "ms", "p10_ms", "p90_ms", "collectives"])
    return extra[extra["evidence"] == evidence].set_index("part")


def _first_uses(report: Any, evidence: str) -> str:
    extra = _extra(report, evidence)
    if extra is None or extra.loc["extra", "ms"] <= 0:
        return ""
    share = extra.loc["first use", "ms"] / extra.loc["extra", "ms"]
    return f"In the model ({evidence}), first uses of asynchronous tensors are {share:.0%} of the extra time"


def _added_up(report: Any, evidence: str) -> str:
    """What the layers of one call come to in the model's forward, against what its functional forward takes more."""
    extra = _extra(report, evidence)
    if extra is None:
        return ""
    ms, low, high = extra["ms"], extra["p10_ms"], extra["p90_ms"]
    calls, spread = extra["collectives"].iloc[0], "{:+.1f} to {:+.1f}".format
    return (
        f"{calls} such calls, up to the first use, against as many in place: {ms['calls']:+.1f} ms. "
        f"The model's forward: {ms['extra']:+.1f} ms (p10-p90 {spread(low['extra'], high['extra'])}), "
        f"of which its first uses {ms['first use']:+.1f} ({spread(low['first use'], high['first use'])}). "
        f"Not explained by such calls: {ms['rest']:+.1f} ms."
    )


def _patch(colour: str) -> Callable[[Axes, float, float], Any]:
    return lambda ax, x, y: ax.add_patch(Rectangle((x, y - 0.01), 0.2, 0.14, facecolor=colour, linewidth=0))


_FIGURES: dict[str, Callable[..., Figure]] = {
    "verdicts": verdicts,
    "breakdown": breakdown,
    "ladder": ladder,
    "crossover": crossover,
    "source": source,
}

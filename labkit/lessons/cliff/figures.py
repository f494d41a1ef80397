"""The cliff's report as figures: pieces, counts, times, verdicts, shares, and the source's runs beside one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from labkit.views import frames, style
from labkit.views.compare import ratios, timings
from labkit.views.frames import need
from labkit.views.rows import LEFT, empty, names
from labkit.views.shares import breakdown
from labkit.views.source import beside_source
from labkit.views.strip import strip, strips
from labkit.views.style import Figure, Sheet, styled, variant_colour

__all__ = ["counts", "figure"]

# column of the table, words over the panel, when it is counted
COUNTED = (
    ("regions", "compiled regions", "in every forward"),
    ("breaks", "graph breaks", "in every forward"),
    ("collectives", "collectives", "in every forward"),
    ("static_breaks", "breaks Dynamo counts", "once, when it compiles"),
)


def figure(report: Any, which: str = "strip", **options: Any) -> Figure:
    """Draw one figure of the cliff's report.

    `which`: 'strip' (B and C under each other, the same piece magnified; `variants=` chooses others), 'counts',
    'timings', 'ratios', 'breakdown', or 'source' (own frames per second beside the source's runs). A report with
    several numbers of blocks needs `blocks=`, which defaults to the largest. Other options go to the view.

    Raises ValueError for an unknown figure, a table that the report lacks, or a missing column.
    """
    draw = _FIGURES.get(which)
    if draw is None:
        raise ValueError(f"no figure {which!r} of this report: there are {', '.join(_FIGURES)}")
    return draw(report, **options)


def _table(report: Any, name: str, blocks: int | None) -> pd.DataFrame:
    found = frames.table(report, name, [])
    if "blocks" in found.columns and len(found):
        there = sorted(set(found["blocks"]))
        blocks = there[-1] if blocks is None else blocks
        if blocks not in there:
            raise ValueError(
                f"no run with {blocks} blocks in table {name!r}: there are {', '.join(map(str, there))}"
            )
        found = found[found["blocks"] == blocks]
    return found


def _strip(
    report: Any, variants: Sequence[str] | None = None, blocks: int | None = None, **options: Any
) -> Figure:
    segments = need(_table(report, "segments", blocks), ["variant"], "segments")
    there = [str(v) for v in pd.unique(segments["variant"])]
    if variants is None:
        variants = [v for v in ("B", "C") if v in there] or there
    blocks = int(segments["blocks"].iloc[0]) if "blocks" in segments.columns and len(segments) else None
    records = {v: frames.of_report(report, v, blocks) for v in variants}
    options = {"forward": "typical", "label": report.label, **options}
    if len(records) == 1:
        return strip(next(iter(records.values())), **options)
    return strips(records, **options)


def _timings(report: Any, blocks: int | None = None, **options: Any) -> Figure:
    samples = _table(report, "samples", blocks)
    return timings(samples, **{"label": _labels(report, samples), **options})


def _ratios(report: Any, blocks: int | None = None, **options: Any) -> Figure:
    found = _table(report, "verdicts", blocks)
    return ratios(found, **{"label": _labels(report, found), **options})


def _breakdown(report: Any, blocks: int | None = None, **options: Any) -> Figure:
    return breakdown(_table(report, "breakdown", blocks), **{"label": report.label, **options})


def _labels(report: Any, table: pd.DataFrame) -> str:
    """Every kind of evidence in a table, or where and when it was recorded."""
    if report.label.startswith("recorded") or "evidence" not in table.columns:
        return report.label
    return ", ".join(map(str, pd.unique(table["evidence"]))) or report.label


def _source(report: Any, blocks: int | None = None, evidence: str | None = None, **options: Any) -> Figure:
    samples = need(_table(report, "samples", blocks), ["evidence", "variant", "round", "seconds"], "samples")
    there = list(pd.unique(samples["evidence"]))
    if evidence is None:
        real = [e for e in there if e != "host only"]
        evidence = report.label if report.label in there else next(iter(real or there), "")
    if there and evidence not in there:
        raise ValueError(
            f"no evidence {evidence!r} in table 'samples': there are {', '.join(map(str, there))}"
        )
    mine = samples[samples["evidence"] == evidence]
    slowest = mine.groupby(["variant", "round"], sort=False)["seconds"].max()
    rates = (1 / slowest).groupby(level="variant", sort=False)
    table = pd.DataFrame(
        {"frames_per_s": rates.median(), "low": rates.quantile(0.1), "high": rates.quantile(0.9)}
    ).reset_index()
    hardware = report.provenance.get("hardware", "this machine")
    options = {
        "here": f"here: {hardware}, {evidence}",
        "there": "the source: 2x H200, NCCL",
        "label": report.label,
        **options,
    }
    return beside_source(table, _table(report, "source", None), **options)


@styled
def counts(
    report: Any, blocks: int | None = None, title: str | None = None, label: str | None = None
) -> Figure:
    """Draw what a forward executes, variant by variant, beside what Dynamo's static counter says, on one scale.

    Ranks that agree share a bar; ranks that differ get one each. Raises ValueError for a missing column.
    """
    columns = [column for column, _, _ in COUNTED]
    table = need(_table(report, "counts", blocks), ["variant", "rank", *columns], "counts")
    label = report.label if label is None else label
    sheet = Sheet()
    if table.empty:
        return empty(sheet, title, "Nothing was counted", label)
    sheet.title(_counted(table) if title is None else title)
    groups = {str(v): rows.sort_values("rank") for v, rows in table.groupby("variant", sort=False)}
    bars = {v: rows if rows[columns].nunique().gt(1).any() else rows.head(1) for v, rows in groups.items()}
    for column, words, when in COUNTED:
        each = (f"{v} {' and '.join(f'{n:g}' for n in rows[column])}" for v, rows in bars.items())
        sheet.say(f"{words} {when}: {', '.join(each)}")
    tops, at = {}, 0.05
    for variant, rows in bars.items():
        tops[variant] = at
        at += 0.2 * len(rows) + 0.12
    most = float(table[columns].to_numpy().max()) or 1.0
    room, gap = (sheet.width - LEFT - 0.35) / len(COUNTED), 0.55
    for i, (column, words, when) in enumerate(COUNTED):
        left = LEFT + i * room
        sheet.text(words, left=left, top=sheet.top, fontweight="bold")
        sheet.text(when, left=left, top=sheet.top + 0.17, color=style.QUIET, fontsize=style.SMALL)
        ax = sheet.axes(left, room - gap, at, top=sheet.top + 0.4)
        ax.set(ylim=(at, 0), xlim=(0, most))
        ax.set_label(column)
        for variant, rows in bars.items():
            for j, row in enumerate(rows.to_dict("records")):
                y, value = tops[variant] + 0.2 * (j + 0.5), row[column]
                ax.barh(y, value, 0.16, color=variant_colour(variant), linewidth=0)
                said = f"{value:g}" + (f"  rank {row['rank']}" if len(rows) > 1 else "")
                ax.annotate(
                    said, (value, y), (4, 0), textcoords="offset points", va="center", fontsize=style.SMALL
                )
        names(
            ax,
            [tops[v] + 0.1 * len(rows) for v, rows in bars.items()],
            list(bars) if i == 0 else [""] * len(bars),
        )
        ax.grid(False)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
    sheet.top += 0.4 + at + 0.05
    return sheet.finish(label, "All panels have the same scale.")


def _counted(table: pd.DataFrame) -> str:
    most = table.loc[table["breaks"].idxmax()]
    if not most["breaks"]:
        return "No variant breaks a graph"
    return (
        f"{style.short_name(str(most['variant']))} runs {most['regions']:g} compiled regions and {most['breaks']:g} "
        f"breaks in every forward; Dynamo's counter says {most['static_breaks']:g}"
    )


_FIGURES: dict[str, Callable[..., Figure]] = {
    "strip": _strip,
    "counts": counts,
    "timings": _timings,
    "ratios": _ratios,
    "breakdown": _breakdown,
    "source": _source,
}

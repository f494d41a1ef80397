"""Figures of the cliff's report: strips, counts, times, verdicts, shares of a forward, and the source's runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from labkit.views import style
from labkit.views.compare import ratios, timings
from labkit.views.forwards import OVERHEAD, variant_record
from labkit.views.strip import strip, strips
from labkit.views.style import (
    NAME_WIDTH,
    Figure,
    Sheet,
    by_evidence,
    empty_figure,
    ink_on,
    label_rows,
    note_beside,
    panel_heading,
    styled,
    variant_colour,
)
from labkit.views.tables import need, table

__all__ = ["counts", "figure"]

# column of the table, words over the panel, when it is counted
COUNTED = (
    ("regions", "compiled regions", "in every forward"),
    ("breaks", "graph breaks", "in every forward"),
    ("collectives", "collectives", "in every forward"),
    ("static_breaks", "breaks Dynamo counts", "once, when it compiles"),
)
PROFILED = (
    "From profiled forwards, which take longer than timed ones: read the shares here, and times from a timing."
    " Kinds stand in the order of the key."
)
BAR, BETWEEN = 0.24, 0.13  # inches a rank's bar takes, and between variants
SHORT = {
    "dispatch": "subclass",
    "lookup": "lookup",
    "entry": "entry",
    "python": "Python",
    "transfer": "transfer",
}  # to be written in a bar
SOURCE_BAR = 0.2
TITLES = {
    "A": "A eager, in place",
    "B": "B compiled, disabled",
    "C": "C compiled, functional",
    "D": "D eager, functional",
    "E": "E compiled, in place",
}


def variant_title(variant: str) -> str:
    """The letter of a variant with its name; what is no letter of theirs stays as it is."""
    return TITLES.get(variant, variant)


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
    found = table(report, name, [])
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
    records = {variant_title(v): variant_record(report, v, blocks) for v in variants}
    options = {"forward": "typical", "label": report.label, **options}
    if len(records) == 1:
        return strip(next(iter(records.values())), **options)
    return strips(records, **options)


def _timings(report: Any, blocks: int | None = None, **options: Any) -> Figure:
    samples = _table(report, "samples", blocks)
    named = samples.assign(variant=samples["variant"].map(variant_title))
    return timings(named, **{"label": _labels(report, samples), **options})


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
        return empty_figure(sheet, "Nothing was counted", label, title)
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
    room, gap = (sheet.width - NAME_WIDTH - 0.35) / len(COUNTED), 0.55
    for i, (column, words, when) in enumerate(COUNTED):
        left = NAME_WIDTH + i * room
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
        label_rows(
            ax,
            [tops[v] + 0.1 * len(rows) for v, rows in bars.items()],
            [variant_title(v) for v in bars] if i == 0 else [""] * len(bars),
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


@styled
def breakdown(frame: pd.DataFrame, label: str = "") -> Figure:
    """Draw what a forward spends its time on as stacked shares: a bar for each rank, with its whole time beside it.

    Args:
        frame: a table with variant, rank, kind and us; several forwards are averaged. With a column `evidence` each
            kind of evidence gets a panel.
        label: the run label.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing, or a kind has no colour.

    >>> rows = [("B", 0, "compute", 300.0), ("B", 0, "entry", 700.0)]
    >>> figure = breakdown(pd.DataFrame(rows, columns=["variant", "rank", "kind", "us"]), label="host only")
    >>> figure.texts[0].get_text()
    'Time that is neither compute nor communication: B 70%'
    """
    frame = need(frame, ["variant", "rank", "kind", "us"], "breakdown")
    unknown = [kind for kind in pd.unique(frame["kind"]) if kind not in style.KINDS]
    if unknown:
        raise ValueError(f"table 'breakdown' has kind {unknown[0]!r}: known are {', '.join(style.KINDS)}")
    sheet = Sheet()
    if frame.empty:
        return empty_figure(sheet, "No forward was recorded", label)
    by = [column for column in ("evidence", "variant", "rank") if column in frame.columns]
    if "forward" in frame.columns:
        forwards = frame.groupby(by)["forward"].nunique()
        sums = frame.groupby([*by, "kind"], sort=False)["us"].sum()
        frame = (sums / forwards).rename("us").reset_index()
    sheet.title(_overhead(frame))
    kinds = [kind for kind in style.KINDS if kind in set(frame["kind"])]
    sheet.legend([(style.KINDS[kind][1], style.swatch(kind, shaped=False)) for kind in kinds])
    for name, part in by_evidence(frame):
        panel_heading(sheet, name)
        table = part.pivot_table(
            index=["variant", "rank"], columns="kind", values="us", aggfunc="sum", fill_value=0.0, sort=False
        )
        table = table.reindex(columns=kinds, fill_value=0.0)
        _stacks(sheet, table)
        sheet.say(f"{name}: {_listed(table)}" if name else _listed(table))
    return sheet.finish(label, PROFILED)


def _stacks(sheet: Sheet, table: pd.DataFrame) -> None:
    groups = [
        (str(variant), rows.sort_index()) for variant, rows in table.groupby(level="variant", sort=False)
    ]
    height = sum(BAR * len(rows) + BETWEEN for _, rows in groups)
    left = NAME_WIDTH + 0.55
    width = sheet.width - left - 1.1
    ax = sheet.axes(left, width, height)
    ax.set(ylim=(height, 0), xlim=(0, 100))
    top, ticks = 0.0, []
    for variant, rows in groups:
        middle = top + BAR * len(rows) / 2
        where = {
            "xycoords": ax.get_yaxis_transform(),
            "textcoords": "offset points",
            "annotation_clip": False,
        }
        text = style.cut(variant_title(variant), NAME_WIDTH - 0.2)
        ax.annotate(text, (0, middle), (-55, 0), va="center", ha="right", gid="variant", **where)
        for (_, rank), row in rows.iterrows():
            ticks.append((top + BAR / 2, f"rank {rank}"))
            whole, start = row.sum(), 0.0
            for kind, us in row.items():
                share = 100 * us / whole if whole else 0.0
                bar = ax.barh(
                    top + BAR / 2, share, BAR - 0.04, start, color=style.KINDS[str(kind)][0], linewidth=0
                )
                bar.patches[0].set_gid(f"{kind} {variant} rank {rank}")
                words = SHORT.get(str(kind), style.KINDS[str(kind)][1])
                room = share / 100 * width - 0.06
                fits = (
                    t for t in (f"{words} {share:.0f}%", f"{share:.0f}%") if style.text_width(t, 7.5) < room
                )
                if text := next(fits, ""):
                    ink, middle = ink_on(style.KINDS[str(kind)][0]), start + share / 2
                    ax.text(middle, top + BAR / 2, text, ha="center", va="center", fontsize=7.5, color=ink)
                start += share
            note_beside(ax, top + BAR / 2, f"of {whole / 1e3:.3g} ms", right=6)
            top += BAR
        top += BETWEEN
    ax.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_formatter("{x:g}%")
    ax.set_xlabel("share of a rank's forward", labelpad=1)
    sheet.top += 0.44


def _listed(table: pd.DataFrame) -> str:
    """Every variant's shares in words, its ranks taken together."""
    sums = table.groupby(level="variant", sort=False).sum()
    shares = sums.div(sums.sum(axis=1), axis=0).fillna(0.0)
    said = []
    for variant, row in shares.iterrows():
        parts = [f"{style.KINDS[str(kind)][1]} {share:.0%}" for kind, share in row.items() if share >= 0.005]
        said.append(f"{variant}: {', '.join(parts) or 'no time'}")
    return "; ".join(said)


def _overhead(frame: pd.DataFrame) -> str:
    found = by_evidence(frame)
    name, part = next(((name, part) for name, part in found if name != "host only"), found[0])
    total = part.groupby("variant", sort=False)["us"].sum()
    lost = part[part["kind"].isin(OVERHEAD)].groupby("variant")["us"].sum().reindex(total.index).fillna(0.0)
    shares = ", ".join(f"{style.short_name(str(v))} {share:.0%}" for v, share in (lost / total).items())
    where = f" ({name})" if len(found) > 1 else ""
    return f"Time that is neither compute nor communication: {shares}{where}"


@styled
def beside_source(
    measured: pd.DataFrame,
    reference: pd.DataFrame,
    here: str = "this machine",
    there: str = "the source",
    label: str = "",
) -> Figure:
    """Draw own frames per second beside the source's, in two panels with the same variants and an axis each.

    The title compares C and B on both: absolute numbers of different machines say nothing about each other, ratios do.

    Args:
        measured: a table with variant and frames_per_s, and low and high where its spread is to be drawn.
        reference: a table with run, variant and frames_per_s; `approximate` adds a tilde.
        here, there: names of the hardware.
        label: the run label.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.
    """
    measured = need(measured, ["variant", "frames_per_s"], "measured")
    reference = need(reference, ["run", "variant", "frames_per_s"], "source")
    reference = reference[reference["frames_per_s"].notna()]  # a run may report breaks and no rate
    sheet = Sheet()
    if measured.empty and reference.empty:
        return empty_figure(sheet, "Nothing was measured", label)
    variants = list(dict.fromkeys([*measured["variant"], *reference["variant"]]))
    sheet.title(_headline(measured, reference))
    lines = {v: max(1, *((t["variant"] == v).sum() for t in (measured, reference))) for v in variants}
    tops, at = {}, 0.04
    for variant in variants:
        tops[variant] = at
        at += SOURCE_BAR * lines[variant] + 0.14
    room = (sheet.width - NAME_WIDTH - 0.3) / 2
    for i, (rates, name) in enumerate(((measured, here), (reference, there))):
        left = NAME_WIDTH + i * (room + 0.15)
        sheet.text(style.cut(name, room - 0.1), left=left, top=sheet.top, fontweight="bold")
        ax = sheet.axes(left, room - 1.15, at, top=sheet.top + 0.28)
        ax.set_label("here" if i == 0 else "source")
        ax.set_ylim(at, 0)
        _bars(ax, rates, tops, lines)
        said = [f"{v} {rate:.3g}" for v, rate in zip(rates["variant"], rates["frames_per_s"], strict=True)]
        sheet.say(f"Frames per second, {name}: {', '.join(said) or 'none'}")
        middles = [tops[v] + SOURCE_BAR * lines[v] / 2 for v in variants]
        label_rows(ax, middles, [variant_title(v) for v in variants] if i == 0 else [""] * len(variants))
        ax.set_xlabel("frames/s", labelpad=1)
    sheet.top += 0.28 + at + 0.44
    return sheet.finish(label, "Different hardware: each panel has its own axis.")


def _bars(ax: Axes, table: pd.DataFrame, tops: dict[str, float], lines: dict[str, int]) -> None:
    for variant, rows in table.groupby("variant", sort=False):
        name = str(variant)
        start = tops[name] + SOURCE_BAR * (lines[name] - len(rows)) / 2
        for i, row in enumerate(rows.itertuples()):
            y = start + SOURCE_BAR * (i + 0.5)
            ax.barh(y, row.frames_per_s, SOURCE_BAR - 0.04, color=variant_colour(name), linewidth=0)
            end = row.frames_per_s
            if hasattr(row, "low") and hasattr(row, "high"):
                look = {"color": "#999999", "linewidth": 1.5, "solid_capstyle": "butt", "gid": "spread"}
                ax.plot([row.low, row.high], [y, y], **look)
                end = max(end, row.high)
            about = "~" if str(getattr(row, "approximate", "")) in ("yes", "True") else ""
            text = f"{about}{row.frames_per_s:.3g}"
            if run := getattr(row, "run", ""):
                text += f"  {style.cut(str(run), 1.35, style.SMALL)}"
            ax.annotate(text, (end, y), (4, 0), textcoords="offset points", va="center", fontsize=style.SMALL)
    missing = [name for name in tops if name not in set(table["variant"])]
    for name in missing:
        where = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
        middle = tops[name] + SOURCE_BAR * lines[name] / 2
        ax.annotate(
            "not reported", (0, middle), (5, 0), va="center", fontsize=style.SMALL, color=style.QUIET, **where
        )
    widest = [float(table[column].max()) for column in ("frames_per_s", "high") if column in table.columns]
    ax.set_xlim(0, max(widest) * 1.03 if len(table) else 1)


def _headline(measured: pd.DataFrame, reference: pd.DataFrame) -> str:
    said = []
    for rates, where in ((measured, "here"), (reference, "in the source")):
        medians = rates.groupby("variant")["frames_per_s"].median()
        if {"C", "B"} <= set(medians.index):
            said.append(f"{medians['C'] / medians['B']:.2f}× {where}")
    if not said:
        return "Own frames per second beside the source's"
    return f"C against B, frames per second: {', '.join(said)}"

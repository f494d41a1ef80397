"""Own frames per second beside the source's."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from labkit.views import style
from labkit.views.style import NAME_WIDTH, Figure, Sheet, empty_figure, label_rows, styled, variant_colour
from labkit.views.tables import need

__all__ = ["beside_source"]

BAR = 0.2  # inches
TITLES = {
    "A": "A eager, in place",
    "B": "B compiled, disabled",
    "C": "C compiled, functional",
    "D": "D eager, functional",
    "E": "E compiled, in place",
}


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
        at += BAR * lines[variant] + 0.14
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
        middles = [tops[v] + BAR * lines[v] / 2 for v in variants]
        label_rows(ax, middles, [TITLES.get(v, v) for v in variants] if i == 0 else [""] * len(variants))
        ax.set_xlabel("frames/s", labelpad=1)
    sheet.top += 0.28 + at + 0.44
    return sheet.finish(label, "Different hardware: each panel has its own axis.")


def _bars(ax: Axes, table: pd.DataFrame, tops: dict[str, float], lines: dict[str, int]) -> None:
    for variant, rows in table.groupby("variant", sort=False):
        name = str(variant)
        start = tops[name] + BAR * (lines[name] - len(rows)) / 2
        for i, row in enumerate(rows.itertuples()):
            y = start + BAR * (i + 0.5)
            ax.barh(y, row.frames_per_s, BAR - 0.04, color=variant_colour(name), linewidth=0)
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
        middle = tops[name] + BAR * lines[name] / 2
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

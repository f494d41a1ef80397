"""What was measured here beside what the source documents report: two machines, two axes, one order of variants."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from labkit.views import style
from labkit.views.frames import need
from labkit.views.rows import LEFT, empty, names
from labkit.views.style import Figure, Sheet, styled, variant_colour

__all__ = ["beside_source"]

BAR = 0.2


@styled
def beside_source(
    measured: pd.DataFrame,
    reference: pd.DataFrame,
    here: str = "this machine",
    there: str = "the source",
    compare: tuple[str, str] = ("C", "B"),
    title: str | None = None,
    label: str = "",
) -> Figure:
    """Draw own frames per second beside the source's, in two panels with the same variants and each its own axis.

    `measured` has variant and frames_per_s, and low and high where its spread is to be drawn; `reference` has run,
    variant and frames_per_s (several runs of a variant become several bars; `approximate` adds a tilde). `here` and
    `there` name the hardware. The title compares the pair `compare` on both: absolute numbers of different machines
    say nothing about each other, ratios do.

    Raises ValueError for a missing column.
    """
    measured = need(measured, ["variant", "frames_per_s"], "measured")
    reference = need(reference, ["run", "variant", "frames_per_s"], "source")
    reference = reference[reference["frames_per_s"].notna()]  # a run may report breaks and no rate
    sheet = Sheet()
    if measured.empty and reference.empty:
        return empty(sheet, title, "Nothing was measured", label)
    variants = list(dict.fromkeys([*measured["variant"], *reference["variant"]]))
    sheet.title(_ratios(measured, reference, compare) if title is None else title)
    lines = {v: max(1, *((t["variant"] == v).sum() for t in (measured, reference))) for v in variants}
    tops, at = {}, 0.04
    for variant in variants:
        tops[variant] = at
        at += BAR * lines[variant] + 0.14
    room = (sheet.width - LEFT - 0.3) / 2
    for i, (table, name) in enumerate(((measured, here), (reference, there))):
        left = LEFT + i * (room + 0.15)
        sheet.text(style.cut(name, room - 0.1), left=left, top=sheet.top, fontweight="bold")
        ax = sheet.axes(left, room - 1.15, at, top=sheet.top + 0.28)
        ax.set_label("here" if i == 0 else "source")
        ax.set_ylim(at, 0)
        _bars(ax, table, tops, lines)
        rates = (f"{v} {rate:.3g}" for v, rate in zip(table["variant"], table["frames_per_s"], strict=True))
        sheet.say(f"Frames per second, {name}: {', '.join(rates) or 'none'}")
        middles = [tops[v] + BAR * lines[v] / 2 for v in variants]
        names(ax, middles, variants if i == 0 else [""] * len(variants))
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
                ax.plot(
                    [row.low, row.high],
                    [y, y],
                    color="#999999",
                    linewidth=1.5,
                    solid_capstyle="butt",
                    gid="spread",
                )
                end = max(end, row.high)
            about = "~" if str(getattr(row, "approximate", "")) in ("yes", "True") else ""
            text = f"{about}{row.frames_per_s:.3g}"
            if run := getattr(row, "run", ""):
                text += f"  {style.cut(str(run), 1.35, style.SMALL)}"
            ax.annotate(
                text,
                (end, y),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=style.SMALL,
            )
    missing = [name for name in tops if name not in set(table["variant"])]
    for name in missing:
        where = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
        middle = tops[name] + BAR * lines[name] / 2
        ax.annotate(
            "not reported", (0, middle), (5, 0), va="center", fontsize=style.SMALL, color=style.QUIET, **where
        )
    widest = [float(table[column].max()) for column in ("frames_per_s", "high") if column in table.columns]
    ax.set_xlim(0, max(widest) * 1.03 if len(table) else 1)


def _ratios(measured: pd.DataFrame, reference: pd.DataFrame, compare: tuple[str, str]) -> str:
    said = []
    for table, where in ((measured, "here"), (reference, "in the source")):
        medians = table.groupby("variant")["frames_per_s"].median()
        if set(compare) <= set(medians.index):
            said.append(f"{medians[compare[0]] / medians[compare[1]]:.2f}× {where}")
    if not said:
        return "Own frames per second beside the source's"
    return f"{compare[0]} against {compare[1]}, frames per second: {', '.join(said)}"

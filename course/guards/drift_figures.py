"""Numeric drift as a picture: how much differs from eager at each stage, and how far each is from the truth."""

from __future__ import annotations

from typing import Any

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import table

__all__ = ["figure"]

LEFT, ROW = 2.3, 0.3  # inches
COLUMNS = "dtype stage differ differ_min differ_max ratio ratio_min ratio_max n inputs".split()


@styled
def figure(report: Any) -> Figure:
    """Draw a saved report of the drift: two numbers for each dtype and stage.

    Left the share of elements that are not eager's bit for bit, right the error against float64 over eager's own: below
    1 the compiled numbers are nearer to the truth. Raises ValueError for a missing table.
    """
    stages = table(report, "stages", COLUMNS)
    sheet = Sheet()
    if stages.empty:
        return empty_figure(sheet, "Nothing was compared", report.label)
    sheet.title(
        _finding(report),
        f"Median, least and most of {stages['n'].min()} inputs. Left: what differs from eager. Right: root mean "
        "square error against float64, compiled over eager; below 1 compiled is the better one.",
    )
    for dtype, rows in stages.groupby("dtype", sort=False):
        sheet.text(str(dtype), fontweight="bold", fontsize=10.5)
        top, height, wide = sheet.top + 0.03, ROW * len(rows), (sheet.width - LEFT - 0.9) / 2
        for side, (name, label) in enumerate(
            (("differ", "elements that differ, %"), ("ratio", "error / eager's error"))
        ):
            ax = sheet.axes(LEFT + side * (wide + 0.5), wide, height, top=top)
            factor = 100 if name == "differ" else 1
            for i, row in enumerate(rows.to_dict("records")):
                low, middle, high = (row[f"{name}{part}"] * factor for part in ("_min", "", "_max"))
                ax.hlines(i + 0.5, low, high, color="#0072B2", linewidth=3, alpha=0.4)
                ax.plot(middle, i + 0.5, "o", color="#0072B2", markersize=5)
                ax.annotate(f"{middle:.3g}", (middle, i + 0.5), xytext=(6, 4), textcoords="offset points",
                            fontsize=style.SMALL - 0.5)  # fmt: skip
            ax.set(ylim=(len(rows), 0), xlabel=label)
            if name == "differ":
                ax.set(xlim=(-4, 108))
                ax.set_yticks([i + 0.5 for i in range(len(rows))], list(rows["stage"]))
            else:
                ax.axvline(1, color=style.QUIET, linewidth=0.8, linestyle=":")
                ax.set(xlim=(0, max(1.3, float(rows["ratio_max"].max()) * 1.15)), yticks=[])
            ax.tick_params(axis="y", length=0, labelsize=style.SMALL + 0.5, labelcolor=style.INK)
            ax.xaxis.label.set_size(style.SMALL)
        sheet.top = top + height + 0.5
        for row in rows.to_dict("records"):
            sheet.say(
                f"{dtype}, {row['stage']}: {row['differ']:.1%} differ (in {row['inputs']} of {row['n']} inputs some), "
                f"error {row['ratio']:.2f} of eager's"
            )
    return sheet.finish(report.label)


def _finding(report: Any) -> str:
    """By most inputs; the few that differ earlier are in the figure's bars and in the report's notes."""
    first = table(report, "first", ["dtype", "most differ from"])
    said = [
        f"{row['dtype']} nowhere"
        if row["most differ from"] == "none"
        else f"{row['dtype']} from {row['most differ from']} on"
        for row in first.to_dict("records")
    ]
    return "Compiled differs from eager in most inputs: " + ", ".join(said)

"""One rank sees another shape: how it ended, by when the shape differs and by what was switched on."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.patches import Rectangle

from labkit.lessons.shared.drill_figures import LOOKS
from labkit.views import style
from labkit.views.colour import ink_on
from labkit.views.frames import need, table_of
from labkit.views.rows import empty
from labkit.views.style import Figure, Sheet, styled

__all__ = ["figure"]

LEFT, ROW = 1.7, 0.62  # inches


@styled
def figure(report: Any, which: str = "outcomes", title: str | None = None) -> Figure:
    """Draw the report of `labkit.lessons.guards.odd_shape`: 'outcomes', a row for when one rank's shape differs.

    A column is what was switched on; a cell says how three calls in step ended, the graphs that each rank compiled, and
    whether one of them is dynamic. Raises ValueError for another figure or a missing table.
    """
    if which != "outcomes":
        raise ValueError(f"no figure {which!r} of this report: there is outcomes")
    found = table_of(report, "outcomes")
    if found is None:
        raise ValueError(f"this report has no table 'outcomes': it has {', '.join(report.tables)}")
    columns = ["differs", "help", "outcome", "graphs by rank", "dynamic by rank", "sleep_s", "timeout_s"]
    found = need(found, columns, "outcomes")
    sheet = Sheet()
    if found.empty:
        return empty(sheet, title, "Nothing was run", report.label)
    rows, columns = list(pd.unique(found["differs"])), list(pd.unique(found["help"]))
    sheet.title(
        title or _finding(found),
        "Each cell: how it ended, and graphs compiled by rank. Rows: when the last rank's input is longer. Arranged: "
        f"{_arranged(found)}.",
    )
    wide = (sheet.width - LEFT - 0.2) / len(columns)
    ax = sheet.axes(LEFT, wide * len(columns), ROW * len(rows), top=sheet.top + 0.42)
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([i + 0.5 for i in range(len(rows))], [name.replace(", ", ",\n") for name in rows])
    heads = ["no help" if name == "none" else name.replace(", ", ",\n") for name in columns]
    ax.set_xticks([i + 0.5 for i in range(len(columns))], heads)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=style.SMALL + 0.5, labelcolor=style.INK)
    for row in found.to_dict("records"):
        at = columns.index(row["help"]), rows.index(row["differs"])
        colour, words = LOOKS.get(str(row["outcome"]), ("#FFFFFF", str(row["outcome"])))
        words = "error" if row["outcome"] == "error" else words
        size = {"width": 1 - 0.07 / wide, "height": 1 - 0.07 / ROW}
        ax.add_patch(
            Rectangle((at[0] + 0.035 / wide, at[1] + 0.035 / ROW), **size, facecolor=colour, linewidth=0)
        )
        graphs = _graphs(row)
        ax.text(
            at[0] + 0.5, at[1] + (0.36 if graphs else 0.5), words, ha="center", va="center", fontsize=style.NORMAL,
            color=ink_on(colour), fontweight="bold",
        )  # fmt: skip
        ax.text(
            at[0] + 0.5,
            at[1] + 0.72,
            graphs,
            ha="center",
            va="center",
            fontsize=style.SMALL,
            color=ink_on(colour),
        )
        sheet.say(f"{row['differs']}, {row['help']}: {row['outcome']}" + (f", {graphs}" if graphs else ""))
    sheet.top += 0.42 + ROW * len(rows) + 0.1
    return sheet.finish(report.label)


def _graphs(row: dict[str, Any]) -> str:
    if row["graphs by rank"] == "-":
        return ""
    dynamic = ", dynamic" if "yes" in str(row["dynamic by rank"]) else ""
    return f"graphs {row['graphs by rank']}{dynamic}"


def _arranged(found: pd.DataFrame) -> str:
    """The sleep and the timeout that stand behind these outcomes, in words."""
    waits = [f"after {seconds:g} s" for seconds in found["timeout_s"].dropna().unique()]
    waits += ["at torch's default where a row says so"] if found["timeout_s"].isna().any() else []
    slept = ", ".join(f"{seconds:g} s" for seconds in found["sleep_s"].unique())
    return f"a compile after the first sleeps {slept}; collectives time out {', '.join(waits)}"


def _finding(found: pd.DataFrame) -> str:
    alone = found[(found["help"] == "none") & (found["differs"] != "no rank")]
    plain, control = alone[alone["timeout_s"].notna()], alone[alone["timeout_s"].isna()]
    said = ", ".join(f"{row['differs']} {row['outcome']}" for row in plain.to_dict("records"))
    said += "".join(f" ({row['outcome']} at the default timeout)" for row in control.to_dict("records"))
    helped = found[(found["outcome"] == "right") & (found["help"] != "none")]
    bad = set(plain[plain["outcome"] != "right"]["differs"])
    mends = list(dict.fromkeys(helped[helped["differs"].isin(bad)]["help"]))
    rest = f"; mended by {', '.join(mends)}" if mends else "; nothing here mends that" if bad else ""
    return f"Another shape on one rank, without help: {said}{rest}"

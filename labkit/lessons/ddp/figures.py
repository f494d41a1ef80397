"""The picture of the pipeline: how long its stages stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table_of

__all__ = ["figure"]

LINES = ("#000000", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00")


@styled
def figure(report: Any) -> Figure:
    """Draw a report of the pipeline: the time that its stages stand still.

    Raises ValueError for a report with none of these.
    """
    for table, draw in DRAWN.items():
        found = table_of(report, table)
        if found is not None:
            if found.empty:
                return empty_figure(Sheet(), "nothing was measured", report.label)
            return draw(report, found)
    raise ValueError(f"report {report.name!r} has no picture: it has {', '.join(report.tables)}")


def _bubble(report: Any, table: pd.DataFrame) -> Figure:
    need(table, ["microbatches", "stood still", "formula"], "summary")
    sheet = Sheet()
    first, last = table.iloc[0], table.iloc[-1]
    sheet.title(
        f"Stages stand still {first['stood still']:.0%} of a step with {first['microbatches']:.0f} microbatch, "
        f"{last['stood still']:.0%} with {last['microbatches']:.0f}",
        "Mean of both ranks, median of the rounds; the formula is for equal stages and free messages.",
    )
    ax = sheet.axes(0.75, 5.2, 2.6)
    ax.plot(table["microbatches"], table["stood still"] * 100, "o-", color=LINES[3], label="measured")
    formula = "(stages - 1) / (microbatches + stages - 1)"
    ax.plot(table["microbatches"], table["formula"] * 100, "s--", color=LINES[0], label=formula)
    ax.set(xscale="log", ylim=(0, 100), xlabel="microbatches", ylabel="standing still, %")
    ax.set_xticks(table["microbatches"], [str(m) for m in table["microbatches"]], minor=False)
    ax.minorticks_off()
    ax.grid(color=style.FAINT, linewidth=0.7)
    ax.legend(frameon=False, fontsize=style.SMALL)
    sheet.top += 0.5
    for row in table.to_dict("records"):
        sheet.say(f"{row['microbatches']:.0f}: {row['stood still']:.0%}, by the formula {row['formula']:.0%}")
    return sheet.finish(report.label)


DRAWN: dict[str, Callable[[Any, pd.DataFrame], Figure]] = {
    "summary": _bubble,
}

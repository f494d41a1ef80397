"""Training as a picture: memory by route."""

from __future__ import annotations

from typing import Any

from course.shared.matrix import key
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, mark, styled
from labkit.views.tables import table

__all__ = ["figure"]

ROW = 0.34  # inches
MEMORY = {"parameters": "#0072B2", "gradients": "#56B4E9", "Adam's moments": "#E69F00"}


@styled
def figure(report: Any) -> Figure:
    """Draw what a rank keeps between steps and holds at the peak of a step, by route.

    Raises ValueError for a report without the table 'memory'.
    """
    found = table(report, "memory", ["route", "rank", "what", "bytes"])
    if found.empty:
        return empty_figure(Sheet(), "nothing was measured", report.label)
    worst = found.groupby(["route", "what"], sort=False)["bytes"].max().unstack("what") / 1e3
    worst = worst.loc[list(dict.fromkeys(found["route"]))]
    kept = worst[list(MEMORY)].sum(axis=1)
    peak = kept - worst["gradients"] + worst["peak of a step"]  # gradients are part of what a step adds
    sheet = Sheet()
    least, most = peak.idxmin(), peak.idxmax()
    sheet.title(
        f"At the peak of a step a rank holds {peak[most]:,.0f} kB with {most}"
        + (f", {peak[least]:,.0f} kB with {least}" if peak[least] < peak[most] else " and with every other"),
        "Of the rank that holds most. Bars: what stays between steps. Diamond: what is there at the peak of a step.",
    )
    sheet.legend(
        [
            *((name, key(colour)) for name, colour in MEMORY.items()),
            ("at the peak of a step", mark("D", style.INK, 5)),
        ]
    )
    left = 0.3 + max(style.text_width(str(name), style.NORMAL) for name in worst.index)
    ax = sheet.axes(left, sheet.width - left - 0.5, ROW * len(worst))
    sheet.top += 0.5
    for i, (name, row) in enumerate(worst.iterrows()):
        edge = 0.0
        for what, colour in MEMORY.items():
            ax.barh(i, row[what], left=edge, color=colour, edgecolor="white", height=0.62)
            edge += row[what]
        ax.plot([peak[name]], [i], "D", color=style.INK, markersize=5)
        sheet.say(f"{name}: {edge:.0f} kB kept, {peak[name]:.0f} kB at the peak")
    ax.set(ylim=(len(worst) - 0.4, -0.6), xlim=(0, None), xlabel="kB a rank")
    ax.set_yticks(range(len(worst)), worst.index)
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    return sheet.finish(report.label)

"""The eager trap over sizes and beside its sources: ratios of times, with the size from which they stop mattering."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.lessons.shared.keys import mark
from labkit.lessons.shared.sizes import size
from labkit.views import style
from labkit.views.style import NAME_WIDTH, Figure, Sheet, by_evidence, empty_figure, note_beside, styled
from labkit.views.tables import table

__all__ = ["crossover", "labels", "source"]

MARKS = {"all_reduce": ("#000000", "o"), "all_gather": ("#0072B2", "s"), "reduce_scatter": ("#D55E00", "^")}


def labels(report: Any, shown: pd.DataFrame) -> str:
    """Every kind of evidence in a table, or where and when it was recorded."""
    if report.label.startswith("recorded") or shown.empty:
        return report.label
    return ", ".join(map(str, pd.unique(shown["evidence"])))


@styled
def crossover(report: Any, title: str | None = None, label: str | None = None) -> Figure:
    """Draw the ratio functional over in place against the size, with its interval, and ring where it stops mattering.

    Raises ValueError for a missing column.
    """
    columns = ["evidence", "collective", "bytes", "stage", "outcome", "ratio", "low", "high"]
    shown = table(report, "verdicts", columns)
    shown = shown[shown["stage"] == "done"] if len(shown) else shown
    at = table(report, "crossover", ["evidence", "collective", "bytes"])
    label = labels(report, shown) if label is None else label
    sheet = Sheet()
    if shown.empty:
        return empty_figure(sheet, "Nothing was compared", label, title)
    never = int(at["bytes"].isna().sum())
    sheet.title(
        title or f"{len(at) - never} of {len(at)} curves come down to where functional is not told slower",
        "Until the result is there. A ring: from this size on functional is no longer told slower.",
    )
    found = by_evidence(shown)
    gap, left = 0.62, 0.75
    wide = (sheet.width - left - 0.25 - gap * (len(found) - 1)) / len(found)
    finite = shown[["ratio", "low", "high"]].replace([float("inf"), -float("inf")], float("nan"))
    ends = (min(0.5, float(finite.min().min()) * 0.9), max(2.0, float(finite.max().max()) * 1.2))
    ends = (max(ends[0], 0.1), min(ends[1], 200.0))
    top = sheet.top + 0.25
    for i, (name, part) in enumerate(found):
        x = left + i * (wide + gap)
        sheet.text(name, left=x, top=sheet.top, fontweight="bold")
        ax = sheet.axes(x, wide, 2.6, top=top)
        ax.set(xscale="log", yscale="log", ylim=ends)
        ax.set_label(f"crossover {name}")
        ax.axhline(1, color=style.QUIET, linewidth=1, linestyle="--")
        for collective, mine in part.groupby("collective", sort=False):
            mine = mine.sort_values("bytes")
            colour, marker = MARKS.get(str(collective), ("#009E73", "D"))
            ax.vlines(
                mine["bytes"], mine["low"].clip(*ends), mine["high"].clip(*ends), color=colour, alpha=0.35
            )
            ax.plot(mine["bytes"], mine["ratio"], marker=marker, color=colour, markersize=5, linewidth=1.2)
            crossed = at[(at["evidence"] == name) & (at["collective"] == collective)]["bytes"].dropna()
            for nbytes in crossed:
                y = float(mine.loc[mine["bytes"] == nbytes, "ratio"].iloc[0])
                ax.plot(nbytes, y, "o", markersize=12, markerfacecolor="none", color=colour, gid="crossover")
            where = (
                f"from {size(crossed.iloc[0])} on not told slower"
                if len(crossed)
                else "slower at the largest size"
            )
            said = ", ".join(f"{size(r.bytes)} {r.ratio:.2f}" for r in mine.itertuples())
            sheet.say(f"{name}, {collective}: {said}; {where}")
        sizes = sorted(set(part["bytes"]))
        ax.minorticks_off()
        ax.set_xticks(sizes[::2], [size(n) for n in sizes[::2]])
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if ends[0] <= t <= ends[1]]
        ax.set_yticks(ticks, [f"{t:g}×" for t in ticks])
        ax.grid(color=style.FAINT, linewidth=0.7)
        ax.set_xlabel("size, bytes")
        if i == 0:
            ax.set_ylabel("functional / in place, time")
    sheet.top = top + 2.6 + 0.5
    looks = {str(name): MARKS.get(name, ("#009E73", "D")) for name in pd.unique(shown["collective"])}
    sheet.legend([(name, mark(shape, colour, 6)) for name, (colour, shape) in looks.items()], left=left)
    return sheet.finish(label)


@styled
def source(
    report: Any, nbytes: int = 16 * 1024, title: str | None = None, label: str | None = None
) -> Figure:
    """Draw ratios of times, functional over in place: here, the issue's three and the source's two runs, on one axis.

    nbytes: the size of the single calls here. Raises ValueError for a size that was not measured, or a missing column.
    """
    calls = table(report, "verdicts", ["evidence", "collective", "bytes", "stage", "ratio", "low", "high"])
    issue = table(report, "issue", ["collective", "eager_us", "functional_us"])
    runs = table(report, "source", ["run", "frames_per_s"]).set_index("run")["frames_per_s"]
    label = labels(report, calls) if label is None else label
    sheet = Sheet()
    sizes = sorted(set(calls["bytes"]))
    if nbytes not in sizes:
        raise ValueError(f"no call of {size(nbytes)} was measured: there are {', '.join(map(size, sizes))}")
    rows: list[tuple[str, str, float, float, float]] = []
    for verdict in report.verdicts:
        if verdict.a == "functional":
            rows.append((f"here, {verdict.evidence}", "the model", verdict.ratio, verdict.low, verdict.high))
    for row in calls[(calls["stage"] == "done") & (calls["bytes"] == nbytes)].to_dict("records"):
        what = f"{row['collective']} of {size(nbytes)}"
        rows.append((f"here, {row['evidence']}", what, row["ratio"], row["low"], row["high"]))
    nan = float("nan")
    for row in issue.to_dict("records"):
        rows.append(
            ("issue 138773, torch 2.4", row["collective"], row["functional_us"] / row["eager_us"], nan, nan)
        )
    whole = runs["baseline of 12a"] / runs["Run 12a"]
    rows.append(("topic 11, 2x H200", "19.5 against 18 frames/s", float(whole), nan, nan))
    groups = list(dict.fromkeys(group for group, *_ in rows))
    rows.sort(key=lambda row: groups.index(row[0]))
    at = next((r for r in rows if r[1] == "the model"), rows[0])
    sheet.title(
        title
        or f"Functional takes {at[2]:.2f} times as long in the model ({at[0]}), {whole:.2f} times in the source",
        "Time of functional over time of in place, in eager. Bars are 99 % intervals; the documents give none.",
    )
    ax = sheet.axes(NAME_WIDTH + 2.1, sheet.width - NAME_WIDTH - 3.2, 0.23 * len(rows))
    ax.set(ylim=(len(rows) - 0.5, -0.5), xscale="log")
    ax.axvline(1, color=style.QUIET, linewidth=1, linestyle="--")
    for i, (group, _, ratio, low, high) in enumerate(rows):
        here = group.startswith("here")
        colour = "#0072B2" if here else "#D55E00"
        if low == low:
            ax.plot([max(low, 0.2), min(high, 100)], [i, i], color=colour, linewidth=4, alpha=0.35)
        ax.plot(ratio, i, "o" if here else "s", color=colour, markersize=6)
        note_beside(ax, i, f"{ratio:.2f}×", right=6)
    ax.set_yticks(range(len(rows)), [f"{group}: {what}" for group, what, *_ in rows])
    ax.tick_params(axis="y", length=0, labelcolor=style.INK, labelsize=style.SMALL)
    ax.minorticks_off()
    right = max(3.0, *(row[2] for row in rows)) * 1.3
    ax.set_xlim(0.5, right)
    ticks = [t for t in (0.5, 1, 1.5, 2, 3, 5, 10, 20, 50) if t <= right]
    ax.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    ax.set_xlabel("time of functional / time of in place", labelpad=2)
    sheet.top += 0.5
    sheet.legend([("measured here", mark("o", "#0072B2", 6)), ("reported there", mark("s", "#D55E00", 6))])
    sheet.say(*(f"{group}, {what}: {ratio:.2f}" for group, what, ratio, *_ in rows))
    return sheet.finish(label)

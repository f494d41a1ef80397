"""The progress strip of a repair: time against eager, graph breaks and failing checks, stage by stage."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, styled
from labkit.views.tables import need, table

__all__ = ["progress"]

BASELINE = "eager"
NAMES, ROW, GAP, NOTE = 1.35, 0.36, 0.5, 2.6  # inches
SLOW, FAST, EAGER = "#D55E00", "#0072B2", "#000000"  # Okabe-Ito


@styled
def progress(report: Any, title: str | None = None) -> Figure:
    """Draw a row for each stage of a repair: its time ratio to eager, breaks a frame, failing checks.

    The ratio is that of a verdict: above 1 is slower. A stage is compared with eager round by round, in its own rounds:
    the machine's other work, which differs between timings, is then in both.

    Args:
        report: of `course.repair.measure`, timed or not, or several `together`.
        title: by default what the first and the last stage are against eager.

    Returns:
        The figure.

    Raises:
        ValueError: a table or a column is missing.
    """
    stages = table(report, "stages", ["stage", "breaks", "fails"])
    sheet = Sheet()
    if stages.empty:
        return empty_figure(sheet, "Nothing was measured", report.label, title)
    ratios = _ratios(report)
    rows = list(stages["stage"])
    sheet.title(title or _finding(stages, ratios))
    height = ROW * len(rows)
    wide = (sheet.width - NAMES - GAP - NOTE) * 0.62
    left = NAMES + wide + GAP
    heads = (
        ("time ratio to eager", NAMES),
        ("breaks a frame", left),
        ("checks that fail", sheet.width - NOTE + 0.2),
    )
    for text, at in heads:
        sheet.text(text, left=at, top=sheet.top, fontweight="bold")
    top = sheet.top + 0.25
    speed = sheet.axes(NAMES, wide, height, top=top)
    broken = sheet.axes(left, sheet.width - NOTE - left, height, top=top)
    most = float(stages["breaks"].max()) or 1.0
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # the dotted line crosses no number
    for y, name in enumerate(rows):
        if name in ratios.index:
            low, middle, high = (float(ratios.loc[name, part]) for part in ("low", "middle", "high"))
            colour = SLOW if middle > 1 else FAST
            speed.hlines(y, low, high, color=colour, linewidth=4.5, alpha=0.3)
            speed.plot(middle, y, "o", color=colour, markersize=6)
            speed.annotate(
                f"{middle:.2f}", (high, y), (6, 0), textcoords="offset points", va="center", fontsize=8.5,
                bbox=ground,
            )  # fmt: skip
            sheet.say(f"{name} {middle:.2f} times the time of eager ({low:.2f}-{high:.2f})")
    for y, row in enumerate(stages.to_dict("records")):
        broken.barh(y, row["breaks"], 0.5, color=SLOW, linewidth=0)
        broken.annotate(f"{row['breaks']:g}", (row["breaks"], y), (4, 0), textcoords="offset points", va="center",
                        fontsize=8.5)  # fmt: skip
        said = row["fails"] or "none"
        note, size = "\n".join(style.wrap(said, NOTE - 0.4, style.SMALL + 0.3)), style.SMALL + 0.3
        where = {"xycoords": broken.get_yaxis_transform(), "xytext": (14, 0), "textcoords": "offset points"}
        broken.annotate(note, (1, y), va="center", fontsize=size, annotation_clip=False, **where)
        sheet.say(f"{row['stage']}: {row['breaks']:g} breaks a frame, checks that fail: {said}")
    if not ratios.empty:
        speed.axvline(1, color=EAGER, linewidth=0.9, linestyle=":")
        speed.set_xlim(0, max(1.0, float(ratios["high"].max())) * 1.15)
    for ax, label in ((speed, "median of its rounds, p10 to p90"), (broken, "executed in a frame")):
        ax.set(ylim=(len(rows) - 0.5, -0.5))
        ax.set_yticks([])
        ax.set_xlabel(label, labelpad=1, fontsize=style.SMALL, color=style.QUIET)
        ax.grid(axis="x", color=style.FAINT, linewidth=0.7)
    broken.set_xlim(0, most * 1.3)
    speed.set_yticks(range(len(rows)), [_label(name) for name in rows])
    speed.tick_params(axis="y", length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    sheet.top = top + height + 0.5
    return sheet.finish(
        report.label,
        "The dotted line is eager in the same rounds: orange is slower, blue faster.",
    )


def _label(name: str) -> str:
    """The name of a stage in at most two lines, as wide as there is room."""
    first, *rest = style.wrap(name, NAMES - 0.15)
    return "\n".join(style.cut(line, NAMES - 0.15) for line in (first, " ".join(rest)) if line)


def _ratios(report: Any) -> pd.DataFrame:
    """By stage: its seconds a frame over eager's in each of its rounds, of the slowest rank; none if not timed."""
    if "samples" not in report.tables:
        return pd.DataFrame(columns=["low", "middle", "high"])
    samples = need(report.tables["samples"], ["variant", "rank", "round", "seconds"], "samples")
    seconds = samples.groupby(["round", "variant"])["seconds"].max().unstack()
    ratios = seconds.drop(columns=BASELINE).div(seconds[BASELINE], axis=0)
    return pd.DataFrame(
        {"low": ratios.quantile(0.1), "middle": ratios.median(), "high": ratios.quantile(0.9)}
    )


def _finding(stages: pd.DataFrame, ratios: pd.DataFrame) -> str:
    first, last = stages.iloc[0], stages.iloc[-1]
    breaks = f"{first['breaks']:g} breaks a frame" + (f" to {last['breaks']:g}" if len(stages) > 1 else "")
    if ratios.empty:
        return f"From {breaks}" if len(stages) > 1 else breaks
    shares = [float(ratios.loc[row["stage"], "middle"]) for row in (first, last)]
    if len(stages) == 1:
        return f"{first['stage']}: {shares[0]:.2f} times the time of eager, {breaks}"
    return f"From {shares[0]:.2f} to {shares[1]:.2f} times the time of eager, and from {breaks}"

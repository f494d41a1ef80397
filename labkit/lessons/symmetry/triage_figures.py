"""The triage flow as a picture of the path taken, and as a widget in which the evidence can be changed."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from labkit.lessons.symmetry.triage import FLOW, Step, evidence_of
from labkit.lessons.symmetry.triage import triage as follow
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled, wrap
from labkit.views.widget import InteractiveFigure

__all__ = ["Triage", "triage", "triage_static"]

YES, NO, IDLE = "#D55E00", "#0072B2", "#BBBBBB"
ROW = 0.92
COUNTED, RANKS = ("breaks", "recompiles"), (0, 1)  # the evidence that has a field for each rank


@styled
def triage_static(found: Any, label: str = "") -> tuple[Figure, str]:
    """Draw the path through the flow for the evidence of one run.

    Args:
        found: what `evidence_of` reads: a RankError, a merged record, or Healths by rank.
        label: the run label.

    Returns:
        The figure, and the line of text that says the same.

    Raises:
        ValueError: `found` is anything else.
    """
    path = follow(evidence_of(found))
    sheet = Sheet()
    sheet.title(_finding(path), "The path that the evidence takes; grey: not asked any more.")
    ax = sheet.axes(0.15, sheet.width - 0.3, ROW * len(FLOW))
    ax.set(xlim=(0, sheet.width - 0.3), ylim=(ROW * len(FLOW), 0))
    ax.set_axis_off()
    for i, (question, advice) in enumerate(FLOW):
        step = path[i] if i < len(path) else None
        colour = IDLE if step is None else YES if step.answer == "yes" else NO
        y = ROW * i + 0.08
        _box(ax, 0, y, 2.9, question, colour, bold=step is not None)
        if step is not None:
            lines = wrap(step.because, 2.85, style.SMALL)[:3]
            ax.text(3.0, y + 0.3, "\n".join(lines), fontsize=style.SMALL, va="center", color=style.INK)
        shown = step is not None and bool(step.advice)
        _box(
            ax,
            6.05,
            y,
            sheet.width - 0.3 - 6.1,
            step.advice if step and shown else advice,
            colour if shown else IDLE,
        )
        if i + 1 < len(FLOW):
            on = step is not None and step.answer == "no"
            _arrow(ax, (1.45, y + 0.6), (1.45, y + ROW), NO if on else IDLE, "no", (1.55, y + 0.77))
        end = step is not None and step.answer == "yes"
        _arrow(ax, (5.75, y + 0.3), (6.05, y + 0.3), YES if end else IDLE, "yes", (5.75, y + 0.2))
    text = " → ".join(f"{step.question} {step.answer} ({step.because})" for step in path)
    text += f" → {path[-1].advice}"
    sheet.say(text)
    return sheet.finish(label), text


class Triage(InteractiveFigure):
    """The interactive figure that `triage` returns: the path of its run, and switches for other evidence."""

    def __init__(self, found: Any, label: str = "") -> None:
        super().__init__(*triage_static(found, label))
        self.evidence, self.label = evidence_of(found), label

    def draw(self, hung: bool, **counts: int) -> tuple[Figure, str]:
        """Draw the path for other evidence.

        Args:
            hung: whether the job hangs.
            counts: breaks and recompiles of ranks 0 and 1, as `breaks_0`, `breaks_1`, `recompiles_0`, `recompiles_1`.
        """
        given = {name: {rank: counts[f"{name}_{rank}"] for rank in RANKS} for name in COUNTED}
        return triage_static(replace(self.evidence, hung=hung, graphs={}, **given), self.label)  # type: ignore[arg-type]

    def _build(self, widgets: Any) -> Any:
        hung = widgets.Checkbox(value=self.evidence.hung, description="hung", indent=False)
        counts = {
            f"{name}_{rank}": widgets.BoundedIntText(
                value=getattr(self.evidence, name).get(rank, 0),
                max=999,
                description=f"{name}, rank {rank}",
                style={"description_width": "110px"},
                layout=widgets.Layout(width="190px"),
            )
            for name in COUNTED
            for rank in RANKS
        }
        row = widgets.HBox(list(counts.values()))
        return self.picture_with_controls(
            widgets, {"hung": hung, **counts}, self.draw, html.escape, rows=[hung, row]
        )


def triage(found: Any, label: str = "") -> Triage:
    """Show the path of a run through the triage flow, with switches for other evidence.

    Args:
        found: a RankError, a merged record, or Healths by rank.
        label: the run label.

    Returns:
        The interactive figure.

    Raises:
        ValueError: `found` is anything else.
    """
    return Triage(found, label)


def _finding(path: list[Step]) -> str:
    last = path[-1]
    return f"{last.question} {last.answer.capitalize()}: {last.advice.partition(':')[0].rstrip('.')}"


def _box(ax: Any, x: float, y: float, width: float, text: str, colour: str, bold: bool = False) -> None:
    ax.add_patch(
        FancyBboxPatch(
            (x + 0.03, y), width - 0.06, 0.58, boxstyle="round,pad=0,rounding_size=0.06",
            facecolor="white", edgecolor=colour, linewidth=2 if colour != IDLE else 1,
        )
    )  # fmt: skip
    lines = wrap(text, width - 0.25, style.SMALL, "bold" if bold else "normal")
    ink = style.QUIET if colour == IDLE else style.INK
    ax.text(
        x + 0.12, y + 0.29, "\n".join(lines), va="center", fontsize=style.SMALL, color=ink,
        fontweight="bold" if bold else "normal",
    )  # fmt: skip


def _arrow(
    ax: Any, start: tuple[float, float], end: tuple[float, float], colour: str, word: str, at: Any
) -> None:
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color=colour, linewidth=1.5)
    )
    ax.text(*at, word, fontsize=style.SMALL, color=colour if colour != IDLE else style.QUIET, va="center")

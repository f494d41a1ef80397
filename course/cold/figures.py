"""Cold and warm as pictures: the phases of becoming ready, by rank and by way, and what survives which change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from course.cold.phases import RUN
from course.shared.matrix import Cell, key, matrix
from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, patch, styled

__all__ = ["survival", "waterfall"]

ROW = 0.34  # inches
# a phase: its colour (Okabe-Ito) and a hatch that tells it without the colour
LOOKS = {
    "find and load": ("#56B4E9", None),
    "Dynamo": ("#0072B2", None),
    "AOTAutograd": ("#CC79A7", None),
    "Inductor": ("#009E73", None),
    "CPU instruction check": ("#E69F00", "xxx"),
    "build and load C++": ("#D55E00", "///"),
    "run, or wait for a peer": ("#E3E3E3", "..."),
}
# an outcome: its colour (Okabe-Ito), and what it means; the word itself stands in the cell
OUTCOMES = {
    "hit": ("#009E73", "right, found by its key"),
    "miss": ("#F0E442", "right, compiled again"),
    "bypass": ("#E69F00", "right, compiled again past a cache"),
    "no key": ("#E3E3E3", "right, as the file is"),
    "refused": ("#56B4E9", "an error"),
    "wrong": ("#000000", "ran, with other numbers"),
}

Span = tuple[str, float, float]


@styled
def waterfall(lanes: Mapping[str, Sequence[Span]], label: str) -> Figure:
    """Draw the phases of first calls in the order of time, a lane each.

    Args:
        lanes: spans (phase, first second, last second) by the name of a lane.
        label: what they were measured on.
    """
    sheet = Sheet()
    share: dict[tuple[str, str], float] = {}
    for lane, spans in lanes.items():
        whole = sum(end - start for _, start, end in spans)
        for phase, start, end in spans:
            share[lane, phase] = share.get((lane, phase), 0.0) + (end - start) / whole
    ends = {lane: spans[-1][2] for lane, spans in lanes.items()}
    last = max(ends, key=lambda lane: ends[lane])
    longest = {
        lane: max((one for one in share if one[0] == lane), key=lambda one: share[one]) for lane in lanes
    }
    together = min(ends.values()) >= 0.9 * ends[last]  # as ranks with a collective do
    if together:  # then one that waits says more than the one that it waits for
        last = next((lane for lane in lanes if longest[lane][1] == RUN), last)
    phase = longest[last][1]
    found = f"{last} takes {_s(ends[last])}, {share[longest[last]]:.0%} of it “{phase}”"
    if not together:
        others = ", ".join(f"{lane} {_s(end)}" for lane, end in ends.items() if lane != last)
        found = f"{last} takes {_s(ends[last])}, {others}"
    elif all(one[1] == phase for one in longest.values()):
        parts = sorted(share[one] for one in longest.values())
        shown = " to ".join(dict.fromkeys(f"{part:.0%}" for part in (parts[0], parts[-1])))
        found = f"The longest phase of the first call is “{phase}”: {shown} of {_s(ends[last])}"
    sheet.title(found, "Seconds from the start of the first call; one run.")
    _bars(sheet, lanes, [_s(spans[-1][2]) for spans in lanes.values()])
    return sheet.finish(label)


def _bars(sheet: Sheet, lanes: Mapping[str, Sequence[Span]], beside: Sequence[str]) -> None:
    """One bar a lane, made of its spans, with a text after each."""
    seen = {span[0] for spans in lanes.values() for span in spans}
    sheet.legend([(name, patch(*look, width=0)) for name, look in LOOKS.items() if name in seen])
    left = 0.35 + max(style.text_width(name, style.NORMAL) for name in lanes)
    right = 0.3 + max(style.text_width(text, style.SMALL + 0.5) for text in beside)
    ax = sheet.axes(left, sheet.width - left - right, ROW * len(lanes))
    ax.set(ylim=(len(lanes), 0), xlim=(0, max(spans[-1][2] for spans in lanes.values()) * 1.01))
    ax.set_yticks([i + 0.5 for i in range(len(lanes))], list(lanes))
    ax.tick_params(axis="y", length=0, labelsize=style.NORMAL, labelcolor=style.INK)
    ax.set_xlabel("seconds", fontsize=style.SMALL)
    for i, (name, spans) in enumerate(lanes.items()):
        for phase, start, end in spans:
            colour, hatch = LOOKS[phase]
            ax.barh(
                i + 0.5, end - start, 0.72, start, color=colour, hatch=hatch, edgecolor="white", linewidth=0
            )
        ax.annotate(
            beside[i], (1, i + 0.5), xycoords=("axes fraction", "data"), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=style.SMALL + 0.5, annotation_clip=False,
        )  # fmt: skip
        summed = {phase: sum(b - a for p, a, b in spans if p == phase) for phase in LOOKS}
        parts = ", ".join(f"{phase} {_s(seconds)}" for phase, seconds in summed.items() if seconds)
        sheet.say(f"{name}: {beside[i]}: {parts}")
    sheet.top += 0.5


def _s(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


@styled
def survival(cells: pd.DataFrame, label: str) -> Figure:
    """Draw kinds of artifacts against changes.

    Args:
        cells: a row for each pair, with the columns kind, change and outcome.
        label: what was run.
    """
    sheet = Sheet()
    if cells.empty:
        return empty_figure(sheet, "No artifact was used", label)
    kinds, changes = list(dict.fromkeys(cells["kind"])), list(dict.fromkeys(cells["change"]))
    wrong = cells[cells["outcome"] == "wrong"]
    silent = "; ".join(
        f"{kind} after a change of {' or '.join(rows['change'])}"
        for kind, rows in wrong.groupby("kind", sort=False)
    )
    found = f"Wrong in silence: {silent}" if silent else "Nothing went wrong in silence"
    sheet.title(found, "Each cell a fresh process that uses the artifact after the change.")
    there = [name for name in OUTCOMES if name in set(cells["outcome"])]
    sheet.legend([(f"{name}: {OUTCOMES[name][1]}", key(OUTCOMES[name][0])) for name in there])
    drawn = []
    for cell in cells.to_dict("records"):
        place, outcome = (kinds.index(cell["kind"]), changes.index(cell["change"])), str(cell["outcome"])
        drawn.append(Cell(*place, OUTCOMES.get(outcome, ("#FFFFFF", ""))[0], outcome))
    matrix(sheet, kinds, changes, drawn, height=0.42, xlabel="what changed since it was made")
    for kind, rows in cells.groupby("kind", sort=False):
        sheet.say(f"{kind}: " + ", ".join(f"{c['change']} {c['outcome']}" for c in rows.to_dict("records")))
    return sheet.finish(label)

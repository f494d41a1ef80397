"""The break-it tests as one picture: the three runs of each, and how each ended."""

from __future__ import annotations

import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.views import style
from labkit.views.style import Figure, Sheet, empty_figure, ink_on, styled
from labkit.views.tables import table

__all__ = ["figure"]

LEFT, LINE, CHIP = 1.2, 0.15, 0.98  # inches
SHARES = (0.385, 0.34, 0.275)  # of the width, for the three runs: what a defence says is the longest
MOST_LINES = 5  # of a text
# how a run ended: its colour (Okabe-Ito); what is in none of these is an error of the suite
COLOURS = {
    "caught": "#009E73", "avoided": "#CC79A7", "passes": "#009E73", "waits": "#56B4E9",
    "wrong numbers": "#E69F00", "right numbers": "#F0E442",
}  # fmt: skip
BAD = "#D55E00"
MEANS = (
    "Box: how the run ended, and after how many seconds (a wait: at the test's time limit). Beside it: what the ranks "
    "returned, or the first sentence of their errors; one text where it is the same on all."
)
# what a text loses: the place in gloo's source, the defence's own type of error, hints, lists of keys, repeated ends
LEFT_OUT = (
    r"\[/\S*\] ",
    r"^(Caught|ContractError): ",
    r" Explanation: .*",
    r"(?<=['\w])\. .*",
    r", keys: .*",
    r", this worker leaves with exit status \d+$",
)


@styled
def figure(report: Any) -> Figure:
    """Draw the report of lesson 15: a row for each test, a column for each run.

    Its table `tests` has test, run, good, how, numbers, said and seconds. Raises ValueError for a report without it.
    """
    found = table(report, "tests", ["test", "run", "good", "how", "numbers", "said", "seconds"])
    sheet = Sheet()
    if found.empty:
        return empty_figure(sheet, "No test was run", report.label)
    names, runs = list(dict.fromkeys(found["test"])), list(dict.fromkeys(found["run"]))
    good = found.groupby("test")["good"].all()
    alone = found[found["run"] == "fault alone"]
    said = f"{int(good.sum())} of {len(good)} tests end as they have to in all of their runs"
    if good.all():
        waits = sum(alone["how"] == "waits")
        wrong, right = (sum(alone["numbers"] == f"{kind} numbers") for kind in ("wrong", "right"))
        said = f"Of {len(good)} faults alone {waits} wait, {wrong + right} are silent: "
        said += f"{wrong} with wrong numbers, {right} with right ones"
    sheet.title(said, MEANS)
    shares = SHARES if len(runs) == len(SHARES) else (1 / len(runs),) * len(runs)
    wide = [(sheet.width - LEFT - 0.15) * share for share in shares]
    lefts = [sum(wide[:i]) for i in range(len(runs) + 1)]
    cells = [(names.index(r["test"]), runs.index(r["run"]), r) for r in found.to_dict("records")]
    texts = {(i, k): _texts(str(r["said"]), wide[k] - CHIP - 0.2) for i, k, r in cells}
    most = [max(len(text) for (j, _), text in texts.items() if i == j) for i in range(len(names))]
    chips = [max(2 + bool(r["numbers"]) for j, _, r in cells if i == j) for i in range(len(names))]
    tall = [LINE * max(of) + 0.07 for of in zip(chips, most, strict=True)]
    tops = [sum(tall[:i]) for i in range(len(names) + 1)]
    ax = sheet.axes(LEFT, lefts[-1], tops[-1], top=sheet.top + 0.26)
    ax.set(xlim=(0, lefts[-1]), ylim=(tops[-1], 0))
    ax.spines[:].set_visible(False)
    ax.set_yticks([top + high / 2 for top, high in zip(tops, tall, strict=False)], names)
    ax.set_xticks([left + of / 2 for left, of in zip(lefts, wide, strict=False)], runs)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=style.SMALL + 0.5, labelcolor=style.INK)
    for i, k, row in cells:
        _cell(ax, lefts[k], tops[i], tall[i], row, texts[i, k])
    sheet.top += 0.26 + tops[-1] + 0.1
    for run in runs:
        rows = found[found["run"] == run].to_dict("records")
        sheet.say(
            f"{run}: "
            + "; ".join(f"{r['test']} {_how(r, ', ')}{'' if r['good'] else ' (BAD)'}" for r in rows)
        )
    return sheet.finish(report.label)


def _cell(ax: Axes, left: float, top: float, tall: float, row: dict[str, Any], text: list[str]) -> None:
    colour = COLOURS.get(row["numbers"] or row["how"], BAD) if row["good"] else BAD
    ax.add_patch(Rectangle((left + 0.04, top + 0.03), CHIP, tall - 0.06, facecolor=colour, linewidth=0))
    middle = {"va": "center", "fontsize": style.SMALL}
    words = f"{_how(row, chr(10))}\n{row['seconds']:.1f} s"
    look = {"ha": "center", "color": ink_on(colour), "linespacing": 1.0}
    ax.text(left + 0.04 + CHIP / 2, top + tall / 2, words, **look, **middle)
    ax.text(left + CHIP + 0.12, top + tall / 2, "\n".join(text), ha="left", linespacing=1.05, **middle)


def _how(row: dict[str, Any], between: str) -> str:
    """How a run ended, and of a silent one whether its numbers are right."""
    return between.join(filter(None, (row["how"], row["numbers"])))


def _texts(said: str, room: float) -> list[str]:
    """The lines of what the ranks said: one text if all said the same, else one for each rank."""
    texts = [_short(text) for text in re.split(r"(?:^|; )rank \d+: ", said)[1:]] or [_short(said)]
    if len(set(texts)) > 1:
        return [line for rank, text in enumerate(texts) for line in _folded(f"rank {rank}: {text}", room)]
    return _folded(texts[0], room)


def _short(said: str) -> str:
    """What a rank said, without what a reader of the figure does not need."""
    for words in LEFT_OUT:
        said = re.sub(words, "", said)
    return said


def _folded(text: str, room: float) -> list[str]:
    """Lines of at most `room` inches."""
    lines = style.wrap(text, room, style.SMALL)
    kept, rest = lines[: MOST_LINES - 1], " ".join(lines[MOST_LINES - 1 :])
    return [style.cut(line, room, style.SMALL) for line in [*kept, *([rest] if rest else [])]]

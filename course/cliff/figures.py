"""Figures of lesson 04: what the tries of its benches ran, ratios of times, and the price of a break."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.timing.verdicts import wider_interval
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled

__all__ = ["QUESTION", "WHOLE", "forwards", "interval", "over_breaks", "tries", "verdict_table"]

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a8f94"
OUTCOMES = {"slower": ORANGE, "faster": BLUE, "cannot tell": GREY}


def _option(result: Any) -> str:
    """The option of `QUESTION` that is right for a result of the bench."""
    regions = result[0].counts.dicts()[0]["regions"]
    steps = ((1, "1"), (35, "2 to 35"), (80, "36 to 80"), (100, "81 to 100"))
    return next((words for most, words in steps if regions <= most), "more than 100")


QUESTION = ("Regions in a forward?", ["1", "2 to 35", "36 to 80", "81 to 100", "more than 100"], _option)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' values and its interval, by the rule of `labkit.timing`.

    >>> interval([2.0] * 9)
    (2.0, 2.0, 2.0)
    """
    return float(np.median(values)), *wider_interval(values)


def tries(tried: Sequence[Any]) -> str:
    """A row for each try of the bench: regions as a bar, the other counts, and the time.

    Args:
        tried: tries whose result is (record, verdict), the verdict against the model that hides nothing.
    """
    apart = [k for k in tried[-1].values if len({str(one.values[k]) for one in tried}) > 1]
    rows = []
    for one in tried:
        record, verdict = one.result
        (counts,) = record.counts.dicts()
        name = ", ".join(_named(k, one.values[k]) for k in apart or one.values)
        rows.append((name, _bar(counts["regions"]), counts["breaks"], counts["collectives"], _price(verdict)))
    return _table(("", "regions", "breaks", "collectives", "time / nothing hidden [host only]"), rows)


def forwards(tried: Sequence[Any]) -> str:
    """A row for each odd block that was tried: the regions of three forwards, in orange where they became more."""
    heads = ("the last block", "regions in forward 1", "in forward 2", "in forward 3")
    return _table(
        heads,
        [
            (
                one.values["last_block"],
                *(_bar(n, BLUE if n == one.result[0] else ORANGE) for n in one.result),
            )
            for one in tried
        ],
    )


WHOLE = (
    "Do the seven others stay whole?",
    ["yes", "no"],
    lambda found: "yes" if found[-1] == found[0] else "no",
)


def _named(control: str, value: Any) -> str:
    """A control's value in words, which a title can hold."""
    if control == "blocks_that_hide":
        return f"a model with {value} hiding block{'' if value == 1 else 's'}"
    return f"{control.replace('_', ' ')} {value}"


def verdict_table(rows: Sequence[tuple[str, ...]], heads: Sequence[str], verdicts: Sequence[Any]) -> str:
    """A row for each verdict, with its ratio as a bar: orange is slower, blue faster, grey cannot be told."""
    return _table(
        (*heads, "time ratio, 99% interval"), [(*r, _price(v)) for r, v in zip(rows, verdicts, strict=True)]
    )


def _bar(regions: int, colour: str = BLUE) -> str:
    """A count as a bar of one pixel a region: HTML that a notebook keeps that is not trusted."""
    style = f"display:inline-block;width:{regions}px;height:11px;background:{colour}"
    return f'<span style="{style}">&nbsp;</span> {regions}'


def _price(verdict: Any) -> str:
    """A ratio as a bar: HTML that a notebook keeps that is not trusted."""
    colour, wide = OUTCOMES[verdict.outcome], min(max(verdict.ratio, 0.05), 4.0) * 60
    bar = (
        f'<span style="display:inline-block;width:{wide:.0f}px;height:11px;background:{colour}">&nbsp;</span>'
    )
    said = f"{verdict.ratio:.2f} ({verdict.low:.2f} to {verdict.high:.2f})"
    return f"{bar} {said}" + (", cannot tell" if verdict.outcome == "cannot tell" else "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(row: Sequence[Any], tag: str) -> str:
        cells = (str(c) if str(c).startswith("<span") else html.escape(str(c)) for c in row)
        return (
            "<tr>"
            + "".join(f'<{tag} style="text-align:left;padding:2px 14px 2px 0">{c}</{tag}>' for c in cells)
            + "</tr>"
        )

    return f"<table>{line(heads, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


@styled
def over_breaks(
    milliseconds: Mapping[int, Sequence[float]],
    line: tuple[float, float],
    fitted: Sequence[int],
    label: str = "",
) -> Figure:
    """Draw the times of a forward over the breaks that it executes, with a line through some of them.

    Args:
        milliseconds: the times of each round, by breaks.
        line: slope and intercept, in milliseconds.
        fitted: the breaks whose times made the line; the others test it.
        label: the run label.

    Returns:
        The figure.
    """
    slope, intercept = line
    sheet = Sheet()
    sheet.title(
        f"A forward takes {1e3 * slope:.0f} us more for each of these breaks",
        "Dots: medians; bars: p10 to p90 of the rounds. The line is fitted to the blue dots; the orange one tests it.",
    )
    ax = sheet.axes(0.75, 8.6, 2.6)
    ends = np.array([0, max(milliseconds)])
    ax.plot(ends, intercept + slope * ends, color=style.QUIET, linewidth=1)
    for breaks, times in milliseconds.items():
        colour = BLUE if breaks in fitted else ORANGE
        ax.plot([breaks] * 2, np.quantile(times, [0.1, 0.9]), color=colour, linewidth=2)
        ax.plot(breaks, np.median(times), "o", color=colour)
        sheet.say(f"{breaks} breaks: {np.median(times):.3g} ms")
    ax.set(ylim=(0, None), xticks=list(milliseconds), xlabel="breaks executed in a forward", ylabel="ms")
    sheet.top += 0.5
    return sheet.finish(label)

"""Figures of lesson 04: what the last tries of its bench ran, the price of a break, and what breaks cost by size."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from oddrank.source import annotate

from labkit import views
from labkit.study import pictures
from labkit.timing.verdicts import wider_interval
from labkit.views import style
from labkit.views.forwards import take_forward
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import need

__all__ = ["QUESTION", "interval", "over_breaks", "over_sizes", "ratios", "sizes", "tries", "verdict_table"]

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a8f94"
OUTCOMES = {"slower": ORANGE, "faster": BLUE, "cannot tell": GREY}


def _option(result: Any) -> str:
    """The option of `QUESTION` that is right for a result of the bench."""
    regions = result[0].counts.dicts()[0]["regions"]
    steps = ((1, "1"), (20, "2 to 20"), (60, "21 to 60"), (100, "61 to 100"))
    return next((words for most, words in steps if regions <= most), "more than 100")


QUESTION = ("Regions in a forward?", ["1", "2 to 20", "21 to 60", "61 to 100", "more than 100"], _option)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' values and its interval, by the rule of `labkit.timing`.

    >>> interval([2.0] * 9)
    (2.0, 2.0, 2.0)
    """
    return float(np.median(values)), *wider_interval(values)


def tries(tried: Sequence[Any], label: str = "host only") -> str:
    """Draw tries of the bench: counts and price of each, their strips on one axis, and the newest one's source.

    Args:
        tried: tries whose result is (record, verdict), the verdict against the model that hides nothing.
        label: the run label.
    """
    apart = [k for k in tried[-1].values if len({str(one.values[k]) for one in tried}) > 1] or [
        *tried[-1].values
    ]
    names = [", ".join(_named(k, one.values[k]) for k in apart) for one in tried]
    rows = []
    for name, one in zip(names, tried, strict=True):
        record, verdict = one.result
        (counts,) = record.counts.dicts()
        rows.append((name, *(counts[k] for k in ("regions", "breaks", "collectives")), _price(verdict)))
    heads = ("", "regions", "breaks", "collectives", "time, as a multiple of nothing hidden [host only]")
    strips = views.strips(
        {n: _fastest(one.result[0]) for n, one in zip(names, tried, strict=True)}, label=label
    )
    source = annotate(tried[-1].result[0])._repr_html_()
    return (
        _table(heads, rows) + pictures.as_html(strips) + pictures.fold(f"The source of: {names[-1]}", source)
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


def _fastest(record: Any) -> Any:
    """The shortest of its forwards: another process may have stopped a longer one."""
    frame = record.segments.frame()
    by_forward = frame.groupby("forward")
    return take_forward(record, int((by_forward["end_us"].max() - by_forward["start_us"].min()).idxmin()))


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


def ratios(by_size: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each size and pair: how hidden compares with eager and with functional, by times of these three.

    Args:
        by_size: times by size, such as '64 x 4'.
    """
    rows = []
    for size, times in by_size.items():
        for other in ("eager", "functional"):
            one = times.compare("hidden", other)
            rows.append((size, f"hidden / {other}", one.ratio, one.low, one.high, one.outcome))
    return pd.DataFrame(rows, columns=["size", "pair", "ratio", "low", "high", "outcome"])


def sizes(kept: Any, tried: Sequence[Any] = ()) -> Figure:
    """Draw the ratios of the reader's tries by size, each below the recorded ones of this size.

    Args:
        kept: a report of this lesson.
        tried: tries with times as their result; without any, all that is recorded is drawn.
    """
    recorded = kept.tables["sizes"].replace(
        {"pair": {"B / A": "hidden / eager", "B / C": "hidden / functional"}}
    )
    size = recorded["size"].str.replace("dim ", "").str.replace(", ", " x ").str.replace(" tokens", "")
    wanted = size.isin([one.values["size"] for one in tried]) | (not tried)
    recorded = recorded.assign(size=size + ", recorded")[
        recorded["pair"].str.startswith("hidden / ") & wanted
    ]
    mine = ratios({f"{one.values['size']}, mine": one.result for one in tried})
    both = pd.concat([one for one in (recorded, mine) if len(one)], ignore_index=True)
    order = both["size"].str.extract(r"(\d+) x (\d+)").astype(int).prod(axis=1)
    both = both.iloc[order.argsort(kind="stable")].reset_index(drop=True)
    return over_sizes(both, label=f"host only; {kept.label}")


@styled
def over_sizes(verdicts: pd.DataFrame, label: str = "") -> Figure:
    """Draw ratios of times with their intervals, for pairs of variants at several sizes.

    Args:
        verdicts: a table with size, pair, ratio, low and high, in the order of the figure.
        label: the run label.

    Returns:
        The figure.

    Raises:
        ValueError: a column is missing.
    """
    verdicts = need(verdicts, ["size", "pair", "ratio", "low", "high"], "verdicts")
    sheet = Sheet()
    sheet.title(
        "Hidden beside eager and functional, by size",
        "Ratio of the times; bars: 99% interval of the median ratio. A bar that crosses 1 supports no conclusion.",
    )
    sizes = list(dict.fromkeys(verdicts["size"]))
    ax = sheet.axes(1.9, 7.5, 0.5 * len(sizes) + 0.2)
    ax.axvline(1, color=style.QUIET, linewidth=1)
    for i, (pair, rows) in enumerate(verdicts.groupby("pair", sort=False)):
        colour = (ORANGE, BLUE)[i % 2]
        for row in rows.itertuples():
            y = sizes.index(row.size) + (0.16 if i else -0.16)
            ax.plot([row.low, row.high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
            ax.plot(row.ratio, y, "o", color=colour, label=pair if row.Index == rows.index[0] else None)
            sheet.say(f"{row.size}, {pair}: {row.ratio:.2f}")
    ax.set(ylim=(len(sizes) - 0.5, -0.5), xlabel="time ratio")
    ax.set_yticks(range(len(sizes)), sizes)
    ax.legend(frameon=False, fontsize=style.SMALL)
    sheet.top += 0.5
    return sheet.finish(label)

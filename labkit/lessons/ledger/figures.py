"""The ledger drawn: how many claims of each lesson hold, and a browser of the rows."""

from __future__ import annotations

import html
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.lessons.shared.keys import patch
from labkit.views import style
from labkit.views.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, empty_figure, ink_on, styled
from labkit.views.tables import table
from labkit.views.widget import InteractiveFigure

__all__ = ["Browser", "across", "browser", "figure", "page"]

# Okabe-Ito; what nobody measured is hatched as well
LOOKS: dict[str, tuple[str, str]] = {
    "holds": ("#0072B2", ""),
    "changed": ("#D55E00", ""),
    "never true": ("#7A2E00", ""),
    "not provoked": ("#E69F00", ""),
    "read in the source": ("#56B4E9", ""),
    "simulated": ("#004D73", ""),
    "enforced": ("#009E73", ""),
    "cited": ("#CC79A7", ""),
    "cannot tell here": ("#BBBBBB", ""),
    "not yet tested": ("#F0E442", "...."),
    "not run": ("#FFFFFF", "////"),
}
ALL = "all"
LEFT, BAR, ROW = 2.15, 0.3, 0.84  # inches
ROWS = 8  # of a page
COLUMNS = ["id", "lesson", "status", "claim", "claimed", "measured", "missing"]


@styled
def figure(report: Any) -> Figure:
    """Draw what stands about the claims: a bar a lesson, stacked by status, with the number of rows in each part.

    `report` is what `labkit.study.results.standing` or `of` gives, or a kept one. Raises ValueError for a report
    without the table `lines`, or a status that has no colour.
    """
    lines = _lines(report)
    sheet = Sheet()
    if lines.empty:
        return empty_figure(sheet, "No claim was looked at", report.label)
    counts = pd.crosstab(lines["lesson"], lines["status"]).sort_index()
    counts = counts[[status for status in LOOKS if status in counts.columns]]
    sheet.title(_finding(lines), _rest(lines))
    sheet.legend([(status, _key(status)) for status in counts.columns])
    wide = sheet.width - LEFT - 0.6
    ax = sheet.axes(LEFT, wide, BAR * len(counts))
    ax.set(ylim=(len(counts), 0), xlim=(0, counts.sum(axis=1).max() * 1.003))
    for i, (lesson, row) in enumerate(counts.iterrows()):
        start = 0
        for status, n in row.items():
            _part(ax, start, i, int(n), str(status), wide / ax.get_xlim()[1])
            start += int(n)
        near = {"textcoords": "offset points", "va": "center", "fontsize": style.SMALL}
        ax.annotate(str(start), (start, i + 0.5), (5, 0), **near)
        sheet.say(f"{lesson}: " + ", ".join(f"{n} {status}" for status, n in row.items() if n))
    ax.set_yticks([i + 0.5 for i in range(len(counts))], list(counts.index))
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("claims", labelpad=1)
    sheet.top += 0.44
    return sheet.finish(report.label)


def _part(ax: Axes, start: int, line: int, n: int, status: str, inches: float) -> None:
    if not n:
        return
    colour, hatch = LOOKS[status]
    look = {"facecolor": colour, "edgecolor": "#888888" if hatch else "white", "linewidth": 0.6}
    ax.add_patch(Rectangle((start, line + 0.12), n, 0.76, hatch=hatch, gid=f"{status} {line}", **look))
    if style.text_width(str(n), style.SMALL) + 0.01 < n * inches:
        behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"} if hatch else None
        ax.text(
            start + n / 2, line + 0.5, str(n), ha="center", va="center", fontsize=style.SMALL,
            color=ink_on(colour), bbox=behind,
        )  # fmt: skip


def _key(status: str) -> Any:
    colour, hatch = LOOKS[status]
    return patch(colour, hatch, "#888888" if hatch else "white", 0.6)


def _finding(lines: pd.DataFrame) -> str:
    n = {status: int(count) for status, count in lines["status"].value_counts().items()}
    parts = [
        f"{n[status]} {words if n[status] > 1 else one}"
        for status, (one, words) in _SAID.items()
        if n.get(status)
    ]
    told = sum(n.get(status, 0) for status in _SAID)
    if not told:
        return "No claim was measured yet"
    return ", ".join([*parts, f"{len(lines) - told} not told"] if told < len(lines) else parts)


# one and several of them
_SAID = {
    "holds": ("claim holds", "claims hold"),
    "changed": ("changed", "changed"),
    "never true": ("was never true", "were never true"),
    "not provoked": ("was not provoked", "were not provoked"),
    "read in the source": ("was read in the source", "were read in the source"),
    "simulated": ("was simulated", "were simulated"),
    "enforced": ("is enforced", "are enforced"),
    "cited": ("is cited", "are cited"),
}


def _rest(lines: pd.DataFrame) -> str:
    """Where the rows are from, and what nobody measured."""
    if "origin" not in lines:
        return ""
    origin = lines["origin"].value_counts()
    parts = [f"{origin[name]} {words}" for name, words in _ORIGINS.items() if origin.get(name)]
    return f"{len(lines)} rows: {', '.join(parts)}."


_ORIGINS = {
    "run now": "run now",
    "kept": "measured before and kept",
    "needs no run": "without a check or the hardware to run one",
    "": "not run",
}


SHORT = {"cannot tell here": "cannot tell", "read in the source": "read"}  # as a narrow cell has it


@styled
def across(table: pd.DataFrame, moved: pd.Series[bool], label: str, most: int = 24) -> Figure:
    """Draw claims by torch versions: what differs between versions first, then what changed before all of them.

    `table` is what `labkit.study.versions.matrix` gives, `moved` what `versions.moved` says of its rows, `most` the
    number of rows. Raises ValueError for a table without a version.
    """
    if not len(table.columns):
        raise ValueError("no torch version is recorded: `labkit ledger --torch 2.15.0` makes one")
    sheet = Sheet()
    sheet.title(
        f"{int(moved.sum())} of {len(table)} claims come out differently on different versions of torch",
        f"The first {min(most, len(table))} rows: what differs between versions, then what changed before all of them.",
    )
    shown = table.head(most)
    cells = [
        Cell(i, j, LOOKS[status][0], SHORT.get(status, status))
        for i, row in enumerate(shown.to_numpy())
        for j, status in enumerate(row)
    ]
    matrix(sheet, list(shown.index), [f"torch {version}" for version in table.columns], cells, height=0.24)
    for name, row in shown.iterrows():
        sheet.say(f"{name}: " + ", ".join(f"{status} on {version}" for version, status in row.items()))
    return sheet.finish(label)


@styled
def page(
    report: Any, lesson: str = ALL, status: str = ALL, words: str = "", number: int = 1
) -> tuple[Figure, str]:
    """One page of the rows that match, as a figure and a line of text: status, claim, quotation, and what was measured.

    lesson: its name, or its number such as '04'. words: each must stand somewhere in the row, in any case. Raises
    ValueError for a lesson or status that no row has, and for a page that there is none of.
    """
    lines = _lines(report)
    for column, wanted in (("lesson", lesson), ("status", status)):
        if wanted == ALL:
            continue
        there = sorted(set(lines[column]))
        mine = lines[column] == wanted
        if column == "lesson":
            mine |= lines[column].str.partition("_")[0] == wanted
        if not mine.any():
            raise ValueError(f"no row has the {column} {wanted!r}: there are {', '.join(there)}")
        lines = lines[mine]
    for word in words.split():
        text = lines[[*COLUMNS, "words"]].astype(str).agg(" ".join, axis=1).str.lower()
        lines = lines[text.str.contains(word.lower(), regex=False)]
    pages = max(1, -(-len(lines) // ROWS))
    if not isinstance(number, int) or not 1 <= number <= pages:
        raise ValueError(f"there is no page {number!r}: there are {pages}")
    asked = ", ".join(part for part in (lesson, status, words) if part not in ("", ALL)) or "every row"
    shown = lines.iloc[ROWS * (number - 1) : ROWS * number]
    head = f"{len(lines)} rows: {asked}" + (f" (page {number} of {pages})" if pages > 1 else "")
    sheet = Sheet()
    if shown.empty:
        return empty_figure(sheet, "No row matches", report.label, head), f"no row matches {asked}"
    sheet.title(head)
    ax = sheet.axes(0.15, sheet.width - 0.3, ROW * len(shown))
    ax.set(xlim=(0, sheet.width - 0.3), ylim=(ROW * len(shown), 0))
    ax.set_axis_off()
    for i, row in enumerate(shown.to_dict("records")):
        _entry(ax, ROW * i, row, sheet.width - 0.3)
    said = [f"{row['id']} {row['status']} ({_where(row)}): {_told(row)}" for row in shown.to_dict("records")]
    sheet.say(*said)
    return sheet.finish(report.label), " | ".join([head, *said])


def _entry(ax: Axes, top: float, row: dict[str, Any], width: float) -> None:
    colour, hatch = LOOKS[row["status"]]
    look = {"facecolor": colour, "edgecolor": "#888888" if hatch else "white", "linewidth": 0.6}
    ax.add_patch(Rectangle((0, top + 0.06), 1.15, ROW - 0.14, hatch=hatch, **look))
    behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"} if hatch else None
    middle = {"ha": "center", "va": "center", "fontsize": style.SMALL, "bbox": behind}
    ax.text(0.575, top + ROW / 2 - 0.01, row["status"], color=ink_on(colour), **middle)
    text = {"va": "top", "fontsize": style.SMALL, "parse_math": False}
    room = width - 1.35
    ax.text(1.28, top + 0.05, f"{row['lesson']}  ·  {row['id']}", fontweight="bold", **text)
    claim = f"{row['claim']} [{row['claimed']}]" if row["claimed"] else str(row["claim"])
    ax.text(1.28, top + 0.23, style.cut(claim, room, style.SMALL), **text)
    quoted = (
        style.cut(f"“{row['words']}”", room, style.SMALL) if row["words"] else "no text of the source here"
    )
    ax.text(1.28, top + 0.41, quoted, fontstyle="italic", **text)
    said = style.cut(f"{_where(row)}: {_told(row)}", room, style.SMALL)
    ax.text(1.28, top + 0.59, said, color=style.QUIET, **text)


def _where(row: dict[str, Any]) -> str:
    """Where a row's status is from, if it is from another run than this machine's."""
    origin = str(row.get("origin", ""))
    return origin if origin.startswith("recorded") else "here"


def _told(row: dict[str, Any]) -> str:
    return "; ".join(filter(None, [row["measured"], row["missing"]])) or "nothing was measured"


class Browser(InteractiveFigure):
    """What `browser` returns: the page that it was made with, and controls for lesson, status, words and page."""

    def __init__(self, report: Any, **first: Any) -> None:
        super().__init__(*page(report, **first))
        self.report, self.first = report, first

    def draw(self, lesson: str, status: str, words: str, number: int) -> tuple[Figure, str]:
        """The page for these controls. Raises ValueError as `page` does."""
        return page(self.report, lesson, status, words, number)

    def _build(self, widgets: Any) -> Any:
        lines = _lines(self.report)
        choices = {
            "lesson": [ALL, *sorted(set(lines["lesson"]))],
            "status": [ALL, *(status for status in LOOKS if status in set(lines["status"]))],
        }
        controls = {
            name: widgets.Dropdown(options=options, value=self.first.get(name, ALL), description=name)
            for name, options in choices.items()
        }
        controls["words"] = widgets.Text(
            value=self.first.get("words", ""), description="words", continuous_update=False
        )
        controls["number"] = widgets.BoundedIntText(
            value=self.first.get("number", 1), min=1, max=-(-len(lines) // ROWS), description="page"
        )

        def said(line: str) -> str:
            return f"<small>{html.escape(line.partition(' | ')[0])}</small>"

        return self.picture_with_controls(widgets, controls, self.draw, said)


def browser(report: Any, **first: Any) -> Browser:
    """The rows of the ledger to browse by lesson, status and words, with the first page as a picture beside it.

    `first` are the settings of `page` to begin with. Raises ValueError as `page` does.
    """
    return Browser(report, **first)


def _lines(report: Any) -> pd.DataFrame:
    lines = table(report, "lines", COLUMNS).fillna("")
    lines["words"] = lines.get("words", "")  # no run from before there were quotations has them
    unknown = [status for status in pd.unique(lines["status"]) if status not in LOOKS]
    if unknown:
        raise ValueError(f"table 'lines' has the status {unknown[0]!r}: known are {', '.join(LOOKS)}")
    return lines

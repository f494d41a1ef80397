"""The scoreboard: every question of the lessons, what you predicted, what your machine measured, and how close it was.

The rule: a prediction is scored by the factor between it and the last measurement, whichever way round. Within 10 % is
spot on (3 points), within a factor of 2 close (2), within 10 the right order of magnitude (1), beyond that a surprise
(0). Where one of the two is 0 or their signs differ there is no factor: spot on if they are equal, else a surprise.
Scored is the last prediction that was made before the first measurement; what came after it is kept and shown.
"""

from __future__ import annotations

import ast
import html
import json
import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import files
from labkit.study import answers

ROOT = files.ours("notebooks").parent


__all__ = [
    "GRADES",
    "RULE",
    "Row",
    "Scoreboard",
    "factor",
    "grade",
    "questions",
    "row_of",
    "scoreboard",
    "words",
]

# the largest factor, its name, its points
GRADES = (
    (1.1, "spot on", 3),
    (2.0, "close", 2),
    (10.0, "right order of magnitude", 1),
    (math.inf, "a surprise", 0),
)
MOST = GRADES[0][2]
RULE = (
    "within 10 %: spot on, 3 points; within a factor of 2: close, 2; within 10: right order of magnitude, 1; beyond: a "
    "surprise, 0. Scored is your last prediction before the first measurement."
)
NOT_RUN, NO_PREDICTION, NOT_SCORED, OPEN = (
    "not run yet",
    "no prediction",
    "after the measurement: not scored",
    "predicted, not run yet",
)


@dataclass(frozen=True)
class Row:
    """One question of the scoreboard; None stands for a number that there is not.

    Args:
        lesson, question, unit: the question.
        predicted: the prediction that counts.
        later: a later one that does not.
        measured: the last measurement.
        date, torch, hardware, label: when and on what it was measured.
    """

    lesson: str
    question: str
    unit: str = ""
    predicted: float | None = None
    later: float | None = None
    measured: float | None = None
    date: str = ""
    torch: str = ""
    hardware: str = ""
    label: str = ""

    @property
    def factor(self) -> float | None:
        """The factor between prediction and measurement; None where one of them is missing."""
        if self.predicted is None or self.measured is None:
            return None
        return factor(self.predicted, self.measured)

    @property
    def points(self) -> int | None:
        """The points of the prediction; None where it cannot be scored."""
        return None if self.factor is None else grade(self.factor)[1]

    @property
    def score(self) -> str:
        """The grade in words, or why there is none."""
        if self.factor is not None:
            return grade(self.factor)[0]
        if self.measured is None:
            return NOT_RUN if self.predicted is None else OPEN
        return NO_PREDICTION if self.later is None else NOT_SCORED


def factor(predicted: float, measured: float) -> float:
    """How many times one number is the other, at least 1; infinite where no factor leads from one to the other.

    >>> factor(100, 440), factor(440, 100), factor(0, 0), factor(0, 3)
    (4.4, 4.4, 1.0, inf)
    """
    if predicted == measured:
        return 1.0
    if not predicted or not measured or (predicted > 0) != (measured > 0):
        return math.inf
    small, large = sorted((abs(predicted), abs(measured)))
    return large / small


def digits(value: float) -> str:
    """A number with four digits, six from ten thousand on: no more than a measurement is worth.

    >>> digits(72.6423), digits(8), digits(24704)
    ('72.64', '8', '24704')
    """
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:g}"


def grade(factor: float) -> tuple[str, int]:
    """The name and the points of a factor.

    >>> grade(1.05), grade(4.4)
    (('spot on', 3), ('right order of magnitude', 1))
    """
    # 1.1 itself is within 10 %, however its quotient was rounded
    return next((name, points) for most, name, points in GRADES if factor <= most * (1 + 1e-9))


def words(predicted: float, measured: float) -> str:
    """A prediction beside its measurement, as `reveal` states it.

    >>> words(100, 440)
    '100, which is 4.4 times too low'
    """
    off = factor(predicted, measured)
    if off == 1.0:
        return f"{predicted:g}: exactly that"
    if grade(off)[1] == MOST:
        return f"{predicted:g}, within 10 %"
    if math.isinf(off) or measured < 0:
        return f"{predicted:g}"
    return f"{predicted:g}, which is {off:.1f} times too {'low' if predicted < measured else 'high'}"


def row_of(question: str, entries: Iterable[answers.Entry] | None = None, lesson: str = "") -> Row:
    """Collect what is known of one question.

    Args:
        question: its name.
        entries: oldest first; by default those of the reader's file.
        lesson: that asks it.

    Returns:
        The row.

    >>> made = [answers.Entry("predicted", "q", 5.0), answers.Entry("predicted", "q", 6.0)]
    >>> row = row_of("q", [*made, answers.Entry("measured", "q", 12.0), answers.Entry("predicted", "q", 12.0)])
    >>> row.predicted, row.later, row.score
    (6.0, 12.0, 'close')
    """
    predicted = later = None
    unit = ""
    last: answers.Entry | None = None
    for entry in answers.entries() if entries is None else entries:
        if entry.question != question:
            continue
        unit = entry.unit or unit
        if entry.kind == answers.MEASURED:
            last = entry
        elif last is None:
            predicted = entry.value
        else:
            later = entry.value
    if last is None:
        return Row(lesson, question, unit, predicted, later)
    return Row(
        lesson, question, unit, predicted, later, last.value, last.date, last.torch, last.hardware, last.label
    )


def questions(root: Path = ROOT) -> dict[str, tuple[str, str]]:
    """Find every question that a lesson of the checkout asks.

    Args:
        root: of the checkout.

    Returns:
        Question -> (lesson, unit), in order.

    >>> questions()["cliff.breaks_per_forward"]
    ('04_graph_break_cliff', 'breaks')
    """
    found: dict[str, tuple[str, str]] = {}
    # by stem, so that a lesson comes before a copy that the reader made of it
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"), key=lambda path: path.stem):
        for source in _code(path):
            found |= {name: (path.stem, unit) for name, unit in _asked(source) if name not in found}
    return found


def _code(path: Path) -> list[str]:
    """The sources of the code cells of a notebook; none where the file is damaged, which is no reason to show no
    scores.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _asked(source: str) -> list[tuple[str, str]]:
    """The (question, unit) pairs of the `predict` calls in a cell."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return []
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        named = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        first = call.args[0] if call.args else None
        if named != "predict" or not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            continue
        units = [*call.args[2:3], *(k.value for k in call.keywords if k.arg == "unit")]
        unit = units[0].value if units and isinstance(units[0], ast.Constant) else ""
        found.append((first.value, str(unit)))
    return found


@dataclass(frozen=True, repr=False)
class Scoreboard:
    """The rows of the scoreboard, in the order of the lessons; shows itself as a table with a line of totals a lesson.

    Args:
        rows: all rows.
        unreadable: unreadable lines of the reader's file.
        lesson: the one whose rows and totals are shown; '' for all.
    """

    rows: tuple[Row, ...]
    unreadable: int = 0
    lesson: str = ""

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows of the table that is shown."""
        return tuple(row for row in self.rows if self.lesson in ("", row.lesson))

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """Lesson -> (points, the most that its scored predictions could have, number of questions)."""
        found: dict[str, tuple[int, int, int]] = {}
        for row in self.rows:
            points, most, count = found.get(row.lesson, (0, 0, 0))
            scored = row.points is not None
            found[row.lesson] = (points + (row.points or 0), most + MOST * scored, count + 1)
        return found

    def frame(self) -> pd.DataFrame:
        """A table with one row for each question; missing numbers are NaN."""
        fields = [*Row.__dataclass_fields__, "factor", "points", "score"]
        table = pd.DataFrame([[getattr(row, name) for name in fields] for row in self.rows], columns=fields)
        numbers = ["predicted", "later", "measured", "factor", "points"]
        return table.astype(dict.fromkeys(numbers, "float64"))

    def summary(self) -> list[str]:
        """A line of totals: for the one lesson that was asked for, else for each and then for all."""
        totals = self.totals()
        if len(totals) > 1 and not self.lesson:
            totals["all lessons"] = tuple(map(sum, zip(*totals.values(), strict=True)))  # type: ignore[assignment]
        lines = []
        for lesson, (points, most, count) in totals.items():
            if self.lesson not in ("", lesson):
                continue
            said = f"{points} of {most} points" if most else "nothing scored"
            lines.append(f"{lesson}: {said}; predictions scored: {most // MOST} of {count}")
        if self.unreadable:
            lines.append(
                f"lines of your file that cannot be read, and were left as they are: {self.unreadable}"
            )
        return lines

    def text(self) -> str:
        """Plain text: the table, the totals, and the rule."""
        if not self.shown:
            return "no question yet: predict(...) in a lesson asks the first"
        table = [HEADS, *(_cells(row) for row in self.shown)]
        widths = [max(len(line[i]) for line in table) for i in range(len(HEADS))]
        lines = [
            "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        return "\n".join([*lines, "", *self.summary(), *textwrap.wrap(RULE, 100)])

    __repr__ = __str__ = text

    def _repr_html_(self) -> str:
        if not self.shown:
            return f"<div>{html.escape(self.text())}</div>"
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in HEADS)
        body = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in _cells(row))
            + "</tr>"
            for row in self.shown
        )
        below = "".join(f"<div>{html.escape(line)}</div>" for line in self.summary())
        rule = f"<div style='opacity:.7'>{html.escape(RULE)}</div>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}{rule}"


HEADS = ("lesson", "question", "predicted", "measured", "factor", "score")


def _cells(row: Row) -> Sequence[str]:
    def say(value: Any) -> str:
        return "-" if value is None else f"{digits(value)} {row.unit}".rstrip()

    predicted = say(row.predicted) + (f" (later {row.later:g})" if row.later is not None else "")
    off = row.factor
    factor = "-" if off is None or math.isinf(off) else f"{off:.2f}"
    points = "" if row.points is None else f" ({row.points})"
    return row.lesson, row.question, predicted, say(row.measured), factor, row.score + points


def scoreboard(lesson: str | None = None, root: Path = ROOT) -> Scoreboard:
    """Show every question of the lessons and of the reader's file, with the prediction and the measurement.

    Args:
        lesson: its number or whole name, to show its questions only.
        root: of the checkout.

    Returns:
        The scoreboard.

    Raises:
        ValueError: no lesson of that name asks anything.

    >>> from labkit.study import predict, reveal
    >>> _ = predict("doctest.score", 90, unit="us"), reveal("doctest.score", 100)
    >>> row = next(row for row in scoreboard().rows if row.question == "doctest.score")
    >>> row.score, row.points
    ('close', 2)
    >>> {row.lesson for row in scoreboard("04").shown}
    {'04_graph_break_cliff'}
    """
    asked = questions(root)
    entries = answers.entries()
    units = {name: unit for name, (_, unit) in asked.items()}
    lessons = {name: where for name, (where, _) in asked.items()}
    for entry in entries:
        lessons.setdefault(entry.question, "elsewhere")
    chosen = "" if lesson is None else _named(lesson, lessons.values())
    rows = []
    for name, where in lessons.items():
        row = row_of(name, entries, where)
        rows.append(row if row.unit else Row(**{**vars(row), "unit": units.get(name, "")}))
    return Scoreboard(tuple(rows), answers.unreadable(), chosen)


def _named(lesson: str, names: Collection[str]) -> str:
    found = sorted({name for name in names if lesson in (name, name.partition("_")[0])})
    if not found:
        raise ValueError(f"no lesson {lesson!r} asks anything: there is {', '.join(sorted(set(names)))}")
    return found[0]

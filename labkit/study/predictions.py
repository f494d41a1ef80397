"""Predictions before a run, what was measured beside them after it, and the score.

The reader's own file holds them, one JSON object a line; labkit only appends to it. It lies outside the checkout, so
that it outlives the checkout and is never committed with it.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import functools
import html
import json
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import files, hardware
from labkit.ranks import current
from labkit.study import pictures
from labkit.study.controls import choices
from labkit.study.pictures import Fold

__all__ = ["Prediction", "file", "predict", "reveal", "scoreboard"]

# the largest factor, whichever way round, its name, its points; 1.1 itself is spot on, however a quotient was rounded
GRADES = (
    (1.1 + 1e-9, "spot on", 3),
    (2, "close", 2),
    (10, "right order of magnitude", 1),
    (math.inf, "a surprise", 0),
)
RIGHT, WRONG = 3, 0  # points of a choice

_asked: dict[str, Prediction] = {}  # the questions asked in this kernel
_unwritten: list[bytes] = []  # lines that the file could not take, kept for this kernel


class Said(str):
    """A sentence that a notebook shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def predict(
    question: str,
    value: float | str | None = None,
    unit: str = "",
    *,
    options: Sequence[str] = (),
) -> Prediction:
    """Ask the reader for a prediction before the experiment runs; `reveal` puts it beside what was measured.

    Answers are added to a file of the reader and never replaced. The last answer before the first measurement is
    scored. Later ones are kept and shown.

    Args:
        question: a name such as 'cliff.breaks_per_forward'.
        value: the answer, where it is given in code; without one, `predict` as the last line of a cell shows a field.
        unit: of the answer.
        options: texts to choose from, where the question is not for a number.

    Raises:
        ValueError: the question is not a name, the value not a finite number or one of the options, or the options are
            not at least two texts.

    >>> predict("doctest.breaks", 160, unit="breaks")
    you predict 160 breaks
    >>> predict("doctest.other")
    no prediction given for doctest.other: fine, just run on
    >>> predict("doctest.breaks")  # asked again, later
    you predict 160 breaks
    >>> predict("doctest.end", "hangs", options=["hangs", "raises"])
    you predict hangs
    """
    name = _named(question)
    offered = choices(f"the prediction {name!r}", options, (str,)) if options else []
    before = _asked.get(question)
    unit = unit or (before.unit if before else "")  # an answer that is given in code need not repeat it
    asked = Prediction(question, unit, tuple(offered))
    _asked[question] = asked
    if value is not None:
        asked.answer(value)
    return asked


@dataclass(repr=False, eq=False)
class Prediction:
    """A question and the reader's answer: a field or buttons where there are widgets, otherwise a line of text."""

    question: str
    unit: str = ""
    options: tuple[str, ...] = ()
    _trouble: str = ""

    def answer(self, value: float | str) -> None:
        """Keep an answer; the same one again adds nothing.

        Raises:
            ValueError: the value is not a finite number, or none of the options.
        """
        checked, wrong = value, ""
        if self.options:
            wrong = "" if value in self.options else f"one of {_listed(self.options)}"
        else:
            try:
                checked = math.nan if isinstance(value, bool) else float(value)
            except (TypeError, ValueError, OverflowError):
                checked = math.nan
            wrong = "" if math.isfinite(checked) else "a finite number"
        if wrong:
            raise ValueError(f"a prediction is {wrong}, got {value!r} for {self.question!r}")
        if checked != self._known().answer:
            self._trouble = _keep("predicted", self.question, checked, self.unit)

    def _known(self) -> _Known:
        """What is known, without answers to a question of this name that was asked in another way."""
        known = _known()[self.question]
        kind = str if self.options else float
        return known if isinstance(known.answer, (kind, type(None))) else _Known()

    @property
    def words(self) -> str:
        """The question, read off its name."""
        name = self.question.rpartition(".")[2].replace("_", " ").removesuffix(f" {self.unit}")
        return f"<b>Your prediction</b>: {html.escape(name)}?"

    def field(self) -> Any:
        """Make the ipywidgets to answer with: the question, the field or buttons, and what is kept so far."""
        import ipywidgets

        kept = self._known().answer
        said = ipywidgets.HTML(html.escape(str(self)))
        said.layout.margin = "2px 2px 2px 16px"  # apart from the unit, which it would else continue

        def answered(change: Any) -> None:
            new = change["new"]
            try:
                if new is not None and new.strip():  # an answer that was given stays
                    self.answer(new)
                said.value = html.escape(str(self))
            except ValueError as error:
                said.value = html.escape(str(error))

        if self.options:
            asked = ipywidgets.ToggleButtons(
                options=self.options, value=kept if kept in self.options else None
            )
            asked.style.button_width = "auto"
        else:
            # a text field, not a number field: that one starts at 0, and 0 is a fair prediction
            asked = ipywidgets.Text("" if kept is None else f"{kept:g}", placeholder="a number, then Enter")
            asked.continuous_update, asked.layout.width = False, "160px"
        asked.observe(answered, "value")
        parts = [ipywidgets.HTML(self.words), asked, ipywidgets.HTML(html.escape(self.unit))]
        if not self.options:
            # a field keeps every key to itself, a button does not: after Enter, Shift+Enter goes on to the next cell
            keep = ipywidgets.Button(description="Keep", layout={"width": "auto"})
            asked.on_msg(lambda _, message, buffers: message.get("event") == "submit" and keep.focus())
            parts.append(keep)
        return ipywidgets.HBox([*parts, said], layout={"flex_flow": "row wrap", "align_items": "center"})

    def __repr__(self) -> str:
        known = self._known()
        unit = self.unit or known.unit
        said = [] if known.predicted is None else [f"you predict {_said(known.predicted)} {unit}".rstrip()]
        if known.later is not None:
            late = f"{_said(known.later)} {unit}".rstrip()
            said.append(f"{late} came after the measurement: kept, not scored")
        if not said:
            return f"no prediction given for {self.question}: fine, just run on"
        return "; ".join([*said, self._trouble] if self._trouble else said)

    def twin(self) -> str:
        """HTML of the question where no kernel runs: how to answer, or the answer that was given."""
        offered = _listed(self.options) if self.options else self.unit
        offered = f" ({html.escape(offered)})" if offered else ""
        end = str(self) if self._known().answer is not None else f"{pictures.RUN} to answer."
        return f"<div>{self.words}{offered} {html.escape(end)}</div>"

    def _ipython_display_(self) -> None:
        box = None
        with contextlib.suppress(ImportError):
            import ipywidgets

            box = pictures.live(ipywidgets, [self.field()])
        pictures.show(box, self.twin(), str(self))


def reveal(question: str, measured: Any, fold: bool = False) -> Said | Fold:
    """Put the prediction for a question beside what was measured, which is kept for the scoreboard.

    Args:
        question: its name.
        measured: a number, or the right option; a number that is not finite is not kept.
        fold: whether a notebook shows the sentence only after a click.

    Raises:
        ValueError: the question is not a name, or `measured` not a number or one of its options.

    >>> _ = predict("doctest.regions", 100, unit="regions")
    >>> reveal("doctest.regions", 400)
    measured: 400 regions; you predicted 100, which is 4.0 times too low
    >>> _ = predict("doctest.ends", "hangs", options=["hangs", "raises"])
    >>> reveal("doctest.ends", "raises")
    measured: raises; you predicted hangs: wrong
    """
    asked = _asked.get(_named(question))  # None: not asked in this kernel
    unit = asked.unit if asked else ""
    value = _measured(question, measured, asked.options if asked else None)
    if isinstance(value, float) and not math.isfinite(value):
        return Said(f"measured: {value:g}, which is no number to compare with: not kept")
    ranks = current()
    where = {"torch": hardware.torch_version(), "hardware": hardware.name()}
    trouble = _keep("measured", question, value, unit, **where, label="" if ranks is None else ranks.label)
    known = _known()[question]
    said = f"measured: {value if isinstance(value, str) else _counted(value, unit or known.unit)}"
    if known.predicted is not None:
        said += f"; you predicted {_beside(known.predicted, value)}"
    if known.later is not None:
        late = f"you predicted {_said(known.later)} after you had seen it, not scored"
        said += f"; {late}" if known.predicted is None else f" ({late})"
    said = f"{said}; {trouble}" if trouble else said
    return Fold("What was measured", f"<div>{html.escape(said)}</div>") if fold else Said(said)


def _measured(question: str, measured: Any, options: tuple[str, ...] | None) -> float | str:
    if options and measured not in options:
        raise ValueError(f"a measurement is one of {_listed(options)}, got {measured!r} for {question!r}")
    if options or (options is None and isinstance(measured, str) and measured.strip()):
        return measured
    try:
        return float(measured)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"a measurement is a number, got {measured!r} for {question!r}") from None


def scoreboard(lesson: str | None = None) -> pd.DataFrame:
    """List every question of the lessons and of the reader's file, with the prediction, the measurement and the score.

    A prediction is scored by the factor between it and the last measurement. Within 10 % is spot on (3 points), within
    a factor of 2 close (2), within 10 the right order of magnitude (1), beyond that a surprise (0). Where one of the
    two is 0 or their signs differ there is no factor: spot on if they are equal, else a surprise. A choice is right (3)
    or wrong (0).

    Args:
        lesson: its number or whole name, to list its questions only.

    Returns:
        A row for each question, and a last one with the total; missing numbers are NaN.

    Raises:
        ValueError: no lesson of that name asks anything.

    >>> scoreboard("19")[["question", "score"]]
                         question         score
    0  new_torch.differ_percent    not measured
    1                       total  nothing scored
    """
    found = _known()
    asked = _questions()
    asked |= {question: ("elsewhere", "") for question in found if question not in asked}
    rows: list[list[Any]] = []
    points = []
    for question, (name, unit) in asked.items():
        if lesson not in (None, name, name.partition("_")[0]):
            continue
        known, factor = found[question], None
        if known.measured is None:
            score = "not measured" if known.predicted is None else "predicted, not measured"
        elif known.predicted is None:
            score = "no prediction" if known.later is None else "after the measurement: not scored"
        else:
            factor, grade, worth = _grade(known.predicted, known.measured)
            score = f"{grade} ({worth})"
            points.append(worth)
        rows.append([name, question, known.unit or unit, known.predicted, known.measured, factor, score])
    if lesson is not None and not rows:
        there = ", ".join(sorted({name for name, _ in asked.values()}))
        raise ValueError(f"no lesson {lesson!r} asks anything: there is {there}")
    total = f"{sum(points)} of {3 * len(points)} points, from {len(points)} of {len(rows)} questions"
    rows.append(["", "total", "", None, None, None, total if points else "nothing scored"])
    columns = ["lesson", "question", "unit", "predicted", "measured", "factor", "score"]
    board = _Board(rows, columns=columns)
    for name in ("predicted", "measured", "factor"):
        if not any(isinstance(value, str) for value in board[name]):
            board[name] = board[name].astype(float)
    return board


class _Board(pd.DataFrame):
    """A table that a notebook shows without row numbers, and with nothing where nothing is known."""

    def _repr_html_(self) -> str:
        return str(self.to_html(index=False, na_rep="", border=0, float_format="{:g}".format))


def file() -> Path:
    """The path of the reader's file; it need not exist yet.

    >>> file().name
    'predictions.jsonl'
    """
    return files.home() / "predictions.jsonl"


@dataclass
class _Known:
    """What is known of a question: the prediction that counts, a later one that does not, and the last measurement."""

    unit: str = ""
    predicted: float | str | None = None
    later: float | str | None = None
    measured: float | str | None = None

    @property
    def answer(self) -> float | str | None:
        return self.predicted if self.later is None else self.later


def _known() -> defaultdict[str, _Known]:
    """What the file says of each question; lines that cannot be read are passed over."""
    found: defaultdict[str, _Known] = defaultdict(_Known)
    try:
        lines = file().read_bytes().splitlines() + _unwritten
    except OSError:
        lines = _unwritten
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            entry = json.loads(line)
            kind, question = entry["kind"], entry["question"]
            # a choice has a key of its own: who reads numbers only passes it over
            value = str(entry["choice"]) if "choice" in entry else float(entry["value"])
            right = isinstance(value, str) or math.isfinite(value)
            if kind in ("predicted", "measured") and isinstance(question, str) and right:
                known = found[question]
                before = next((one for one in (known.predicted, known.measured) if one is not None), value)
                if type(before) is not type(value):
                    known = found[question] = _Known()  # it was another question then
                late = kind == "predicted" and known.measured is not None
                setattr(known, "later" if late else kind, value)
                known.unit = entry.get("unit") or known.unit
    return found


def _keep(kind: str, question: str, value: float | str, unit: str, **where: str) -> str:
    """Append a line to the file; where that cannot be, a sentence says why."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    said = {"choice" if isinstance(value, str) else "value": value}
    entry = {"kind": kind, "question": question, **said, "unit": unit, "date": now, **where}
    line = json.dumps(entry).encode() + b"\n"
    try:
        file().parent.mkdir(parents=True, exist_ok=True)
        # unbuffered: a line is one write, so that two kernels may append at once
        with open(file(), "ab+", buffering=0, opener=functools.partial(os.open, mode=0o600)) as out:
            out.seek(max(out.tell() - 1, 0))
            whole = out.read(1) in (b"", b"\n")  # otherwise its writer died half-way through the last line
            out.write(line if whole else b"\n" + line)
    except OSError as error:
        _unwritten.append(line)
        return f"cannot write {file()} ({error.strerror or error}): kept for this kernel only"
    return ""


def _questions() -> dict[str, tuple[str, str]]:
    """The questions that the lessons ask: name -> (lesson, unit). A damaged lesson or cell is passed over."""
    found: dict[str, tuple[str, str]] = {}
    # by stem, so that a lesson comes before a copy that the reader made of it
    for path in sorted(files.lessons(), key=lambda path: path.stem):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
                code = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
                with contextlib.suppress(SyntaxError):
                    for node in ast.walk(ast.parse(code if "predict(" in code else "")):
                        match node:
                            case ast.Call(ast.Name("predict"), [ast.Constant(str(name)), *_], words):
                                units = [word.value for word in words if word.arg == "unit"]
                                unit = "".join(str(u.value) for u in units if isinstance(u, ast.Constant))
                                found.setdefault(name, (path.stem, unit))
    return found


def _grade(predicted: Any, measured: Any) -> tuple[float | None, str, int]:
    """The factor between the two, infinite where none leads from one to the other; its name; its points."""
    if isinstance(predicted, str):
        return (None, "right", RIGHT) if predicted == measured else (None, "wrong", WRONG)
    if predicted == measured:
        factor = 1.0
    else:
        factor = max(predicted / measured, measured / predicted) if predicted * measured > 0 else math.inf
    return factor, *next((name, points) for most, name, points in GRADES if factor <= most)


def _beside(predicted: Any, measured: Any) -> str:
    factor, grade, _ = _grade(predicted, measured)
    if factor is None:
        return f"{predicted}: {grade}"
    if factor == 1:
        return f"{predicted:g}: exactly that"
    if grade == "spot on":
        return f"{predicted:g}, within 10 %"
    if math.isinf(factor) or measured < 0:
        return f"{predicted:g}"
    return f"{predicted:g}, which is {factor:.1f} times too {'low' if predicted < measured else 'high'}"


def _counted(value: float, unit: str) -> str:
    """'2 graphs', '1 graph', '1 ms'; no more digits than a measurement is worth."""
    first, _, rest = unit.partition(" ")
    if value == 1 and len(first) > 2:
        first = first.removesuffix("s")
    digits = f"{value:.4g}" if abs(value) < 1e4 else f"{value:g}"
    return f"{digits} {first} {rest}".rstrip()


def _said(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _listed(options: tuple[str, ...]) -> str:
    return f"{', '.join(options[:-1])} or {options[-1]}"


def _named(question: str) -> str:
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"a question is a name such as 'cliff.breaks_per_forward', got {question!r}")
    return question

"""Predictions before a run, and the measured number beside them after it.

Answers are kept in the reader's own file (`labkit.study.answers`), from one session to the next.
"""

from __future__ import annotations

import html
import math
from numbers import Real
from typing import Any

from labkit import hardware
from labkit.ranks import current
from labkit.study import answers
from labkit.study.scores import Row, digits, row_of, words

__all__ = ["Prediction", "predict", "reveal"]

WIDGET = "application/vnd.jupyter.widget-view+json"

_units: dict[str, str] = {}  # of the questions asked in this kernel


class Said(str):
    """A sentence that a notebook shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def predict(question: str, value: float | None = None, unit: str = "") -> Prediction:
    """Ask the reader for a prediction before the experiment runs; `reveal` puts it beside what was measured.

    Answers are kept in a file of the reader and never replaced: the last answer before the first measurement is scored,
    later ones are kept and shown.

    Args:
        question: a name such as 'cliff.breaks_per_forward'.
        value: the answer, where it is given in code; without one, the last line of a cell shows a field to type it in.
        unit: of the answer.

    Returns:
        The prediction, which shows itself.

    Raises:
        ValueError: the question is not a name, or the value not a finite number.

    >>> predict("doctest.breaks", 160, unit="breaks")
    you predict 160 breaks
    >>> predict("doctest.other")
    no prediction given for doctest.other: fine, just run on
    >>> predict("doctest.breaks")  # asked again, later
    you predict 160 breaks
    """
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"a question is a name such as 'cliff.breaks_per_forward', got {question!r}")
    if unit:
        _units[question] = unit
    asked = Prediction(question, unit)
    if value is not None:
        asked.answer(value)
    return asked


class Prediction:
    """A question and the reader's answer: a field to type into where there are widgets, otherwise a line of text."""

    _shown: dict[str, Prediction] = {}

    def __init__(self, question: str, unit: str = "") -> None:
        self.question, self.unit = question, unit
        self.trouble = ""
        self._widget: Any = None

    @property
    def value(self) -> float | None:
        """The answer that counts, or where none counts the last one; None without an answer."""
        row = row_of(self.question)
        return row.predicted if row.predicted is not None else row.later

    def answer(self, value: float | str) -> None:
        """Keep an answer; the same number again adds nothing.

        Raises:
            ValueError: the value is not a finite number.
        """
        number = _number(self.question, value)
        row = row_of(self.question)
        if number != (row.later if row.later is not None else row.predicted):
            self.trouble = answers.add(answers.PREDICTED, self.question, number, self.unit)

    @property
    def text(self) -> str:
        """One line: the answer as it is kept, or that there is none."""
        row = row_of(self.question)
        unit = self.unit or row.unit
        if row.predicted is None and row.later is None:
            return f"no prediction given for {self.question}: fine, just run on"
        parts = []
        if row.predicted is not None:
            parts.append(f"you predict {row.predicted:g} {unit}".rstrip())
        if row.later is not None:
            parts.append(f"{row.later:g} {unit}".rstrip() + " came after the measurement: kept, not scored")
        return "; ".join([*parts, *([self.trouble] if self.trouble else [])])

    @property
    def how(self) -> str:
        """The call that answers the question without a widget."""
        unit = f', unit="{self.unit}"' if self.unit else ""
        return f'predict("{self.question}", 100{unit})'

    @property
    def widget(self) -> Any:
        """The field to type into, made on first use; None where ipywidgets is not installed."""
        if self._widget is None:
            try:
                import ipywidgets
            except ImportError:
                return None
            self._widget = self._build(ipywidgets)
        return self._widget

    def close(self) -> None:
        """Close the widget; the answer stays."""
        if self._widget is not None:
            for part in (*self._widget.children, self._widget):
                part.unobserve_all()
                for own in (part.layout, getattr(part, "style", None), part):
                    if own is not None:
                        own.close()
        self._widget = None

    def _build(self, widgets: Any) -> Any:
        # a text field, not a number field: that one starts at 0, and 0 is a fair prediction
        kept = self.value
        field = widgets.Text(
            value="" if kept is None else f"{kept:g}",
            placeholder="a number",
            continuous_update=False,
            layout=widgets.Layout(width="110px"),
        )
        before = widgets.HTML(f"<b>Your prediction</b>: {html.escape(_plain(self.question, self.unit))}?")
        unit = widgets.HTML(html.escape(self.unit))
        state = widgets.HTML(self._state())

        def answered(change: Any) -> None:
            if not change["new"].strip():
                return  # an answer that was given stays
            try:
                self.answer(change["new"])
                state.value = self._state()
            except ValueError as error:
                state.value = html.escape(str(error))

        field.observe(answered, "value")
        return widgets.HBox(
            [before, field, unit, state], layout=widgets.Layout(flex_flow="row wrap", align_items="center")
        )

    def _state(self) -> str:
        if self.value is None:
            return "<i>Enter keeps it; none is fine, just run on</i>"
        return f"<i>{html.escape(self.text)}</i>"

    def _repr_html_(self) -> str:
        said = html.escape(self.text)
        if self.value is not None:
            return f"<div>{said}</div>"
        asked = _plain(self.question, self.unit)
        unit = f", in {self.unit}" if self.unit and self.unit not in asked.split() else ""
        return (
            f"<div><b>Your prediction</b>: {html.escape(asked + unit)}? "
            f"{said[0].upper()}{said[1:]}.<br>"
            f"<span style='opacity:.7'>To answer in code: <code>{html.escape(self.how)}</code></span></div>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """One output: the widget where there is a kernel, and its twin in words for everywhere else.

        A question without an answer is marked as one, so that a saved page can leave it out.
        """
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self._repr_html_()}
        if self.widget is not None:
            before = Prediction._shown.get(self.question)
            if before is not None and before is not self:
                before.close()  # ipywidgets keeps every widget alive until it is closed
            Prediction._shown[self.question] = self
            made = self._widget._repr_mimebundle_() or {}
            data = made[0] if isinstance(made, tuple) else made
            if WIDGET in data:
                bundle[WIDGET] = data[WIDGET]
        return bundle, ({"labkit": "question"} if self.value is None else {})

    def __repr__(self) -> str:
        return self.text


def reveal(question: str, measured: Any) -> Said:
    """Put the prediction for a question beside the measured number, which is kept for the scoreboard.

    Args:
        question: its name.
        measured: a number; one that is not finite is not kept.

    Returns:
        A sentence.

    Raises:
        ValueError: `measured` is not a number.

    >>> _ = predict("doctest.regions", 100, unit="regions")
    >>> reveal("doctest.regions", 400)
    measured: 400 regions; you predicted 100, which is 4.0 times too low
    """
    value = _measured(question, measured)
    unit = _units.get(question, "")
    if not math.isfinite(value):
        return Said(f"measured: {value:g}, which is no number to compare with: not kept")
    trouble = answers.add(answers.MEASURED, question, value, unit, **_where())
    row = row_of(question)
    head = f"measured: {_counted(value, unit or row.unit)}"
    said = head if row.predicted is None and row.later is None else f"{head}{_beside(row, value)}"
    return Said(f"{said}; {trouble}" if trouble else said)


def _beside(row: Row, measured: float) -> str:
    later = "" if row.later is None else f"you predicted {row.later:g} after you had seen it, not scored"
    if row.predicted is None:
        return f"; {later}"
    return f"; you predicted {words(row.predicted, measured)}" + (f" ({later})" if later else "")


def _number(question: str, value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value.strip())
        except ValueError:
            raise ValueError(f"a prediction is a number, got {value!r} for {question!r}") from None
    elif not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"a prediction is a number, got {value!r} for {question!r}")
    if not math.isfinite(value):
        raise ValueError(f"a prediction is a finite number, got {value!r} for {question!r}")
    return float(value)


def _measured(question: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"a measurement is a number, got {value!r} for {question!r}") from None


def _counted(value: float, unit: str) -> str:
    """'2 graphs', '1 graph', '1 ms'."""
    first, _, rest = unit.partition(" ")
    if value == 1 and len(first) > 2 and first.endswith("s"):
        first = first[:-1]
    return f"{digits(value)} {first} {rest}".rstrip()


def _plain(question: str, unit: str) -> str:
    """'cliff.breaks_per_forward' as words, 'breaks per forward', without a unit at the end."""
    name = question.rpartition(".")[2].replace("_", " ")
    return (name.removesuffix(f" {unit}") if unit else name) or question


def _where() -> dict[str, str]:
    """Where the measurement was made: torch, hardware, and the label of the running ranks."""
    ranks = current()
    return {
        "torch": hardware.torch_version(),
        "hardware": hardware.name(),
        "label": ranks.label if ranks is not None else "",
    }

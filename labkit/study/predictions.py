"""Predict before the run, and see your number beside the measured one after it."""

from __future__ import annotations

from typing import Any

__all__ = ["predict", "reveal"]

_made: dict[str, tuple[float, str]] = {}


class Said(str):
    """A sentence that a notebook shows as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def predict(question: str, value: float | None = None, unit: str = "") -> Said:
    """Note what you expect before you run the experiment; `reveal` puts it beside what was measured.

    question: a name such as 'cliff.breaks_per_forward'. value: your number; None is fine and is said. Kept for
    this kernel; a later prediction for the same question replaces it. Raises ValueError for a value that is not
    a number.

    >>> predict("doctest.breaks", 160, "breaks")
    you predict 160 breaks
    >>> predict("doctest.other")
    no prediction for doctest.other: fine, just run on
    """
    if value is None:
        _made.pop(question, None)
        return Said(f"no prediction for {question}: fine, just run on")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"a prediction is a number, got {value!r} for {question!r}")
    _made[question] = (value, unit)
    return Said(f"you predict {value:g} {unit}".rstrip())


def reveal(question: str, measured: Any) -> Said:
    """Put the prediction for `question` beside the measured number.

    >>> _ = predict("doctest.regions", 100, "regions")
    >>> reveal("doctest.regions", 400)
    measured: 400 regions; you predicted 100, which is 4.0 times too low
    """
    measured = float(measured)
    if question not in _made:
        return Said(f"measured: {measured:g} (you made no prediction for {question})")
    value, unit = _made[question]
    head = f"measured: {measured:g} {unit}".rstrip()
    if value == measured:
        return Said(f"{head}; you predicted exactly that")
    if value > 0 and measured > 0:
        factor, way = (measured / value, "low") if measured > value else (value / measured, "high")
        if factor < 1.1:
            return Said(f"{head}; you predicted {value:g}, within 10 %")
        return Said(f"{head}; you predicted {value:g}, which is {factor:.1f} times too {way}")
    return Said(f"{head}; you predicted {value:g}")

"""A timeline of ranks with a slider for the timeout."""

from __future__ import annotations

from typing import Any

import pandas as pd

from course.shared.timelines import timelines
from labkit.views.style import Figure
from labkit.views.widget import InteractiveFigure

__all__ = ["Patience"]


class Patience(InteractiveFigure):
    """Timelines of one drill with a slider for the timeout of its collectives.

    Args:
        notes: As for `timelines`; of one drill that ended right.
        ends: As for `timelines`.
        timeout_s: Where the slider stands first, and what the static twin shows.
        label: The run label.

    >>> from course.shared.timelines import ENDS, NOTES
    >>> notes = pd.DataFrame([("d", 0, "collective", "all_reduce", 0.5, 2.5)], columns=NOTES)
    >>> ends = pd.DataFrame([("d", 0, 2.5, "returned")], columns=ENDS)
    >>> print(Patience(notes, ends, 1.0).text)
    the longest wait is 2.0 s: with a timeout of 1 s the job is dead
    """

    def __init__(
        self, notes: pd.DataFrame, ends: pd.DataFrame, timeout_s: float = 1.0, label: str = ""
    ) -> None:
        self.notes, self.ends, self.timeout_s, self.label = notes, ends, timeout_s, label
        calls = notes[notes["kind"] == "collective"]
        longest = calls.loc[(calls["end"] - calls["begin"]).idxmax()]
        self.begin, self.wait = float(longest["begin"]), float(longest["end"] - longest["begin"])
        super().__init__(*self.draw(timeout_s))

    def draw(self, timeout_s: float) -> tuple[Figure, str]:
        """Draw the lanes with the end of this timeout marked, and say how the job ends."""
        how = "dead" if timeout_s < self.wait else "slow, and right"
        text = f"the longest wait is {self.wait:.1f} s: with a timeout of {timeout_s:g} s the job is {how}"
        given = (self.begin, self.begin + timeout_s)
        return timelines(self.notes, self.ends, self.label, text[0].upper() + text[1:], given), text

    def _build(self, widgets: Any) -> Any:
        slider = widgets.FloatSlider(
            value=self.timeout_s, min=0.2, max=max(5.0, 1.5 * self.wait), step=0.1, description="timeout, s"
        )
        return self.picture_with_controls(widgets, {"timeout_s": slider}, self.draw)

"""A stream program with controls: change one, and it is simulated and drawn again, races and all."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.lessons.shared.streams import Program, Timeline, simulate
from labkit.lessons.shared.streams_figures import timeline, timeline_text
from labkit.views.style import Figure
from labkit.views.widget import InteractiveFigure

__all__ = ["Redraw", "redraw"]

Programs = Program | Sequence[Program] | Mapping[int, Program]


def redraw(build: Callable[..., Programs], *, launch: float = 0.0, **controls: Any) -> Redraw:
    """Show the program that `build(**choices)` writes down, with a control for each choice.

    A control is a list (choose one of these), True or False (a box to tick), or (lowest, highest, first) or
    (lowest, highest, first, step) for a number. `build` gets the first of a list, the value of a box and the first
    number before anyone has touched them; the figure of that stays where there is no kernel. Raises ValueError for a
    control that is none of these, and what `build` raises on its first values.

    >>> def build(wait):
    ...     program = Program("one kernel", streams="side")
    ...     program.kernel("k", 2)
    ...     return program
    >>> redraw(build, wait=True).text
    'one kernel: 2 units, no race'
    """
    return Redraw(build, controls, launch)


class Redraw(InteractiveFigure):
    """What `redraw` returns: `figure` and `text` for the first choices, `widget` to change them."""

    def __init__(self, build: Callable[..., Programs], controls: Mapping[str, Any], launch: float) -> None:
        self.build, self.launch = build, launch
        self.controls = {name: _control(name, given) for name, given in controls.items()}
        super().__init__(*self.draw(**{name: first for name, (first, _) in self.controls.items()}))

    def draw(self, **choices: Any) -> tuple[Figure, str]:
        """The figure for these choices and the line that says the same. Raises what `build` and the simulator raise."""
        found = self.simulated(**choices)
        text = timeline_text(found)
        return timeline(found), " | ".join([text, *map(str, found.races)])

    def simulated(self, **choices: Any) -> Timeline:
        """The timeline for these choices."""
        return simulate(self.build(**choices), launch=self.launch)

    def _build(self, widgets: Any) -> Any:
        made = {}
        for name, (first, given) in self.controls.items():
            text = name.replace("_", " ")
            says = {"value": first, "description": text, "style": {"description_width": "initial"}}
            if isinstance(given, bool):
                made[name] = widgets.Checkbox(value=first, indent=False, description=text)
            elif isinstance(given, tuple):
                ends = dict(zip(("min", "max", "step"), (*given[:2], given[3]), strict=True))
                made[name] = widgets.FloatSlider(**ends, continuous_update=False, **says)
            else:
                made[name] = widgets.Dropdown(options=given, **says)
        row = widgets.HBox(list(made.values()), layout=widgets.Layout(flex_flow="row wrap"))
        return self.picture_with_controls(widgets, made, self.draw, refused=_refused, rows=[row])


def _refused(error: ValueError) -> str:
    """A program that cannot be, by the name of its error."""
    return f"<b>{html.escape(type(error).__name__)}</b>: {html.escape(str(error))}"


def _control(name: str, given: Any) -> tuple[Any, Any]:
    """A control's first value, and the control in one form."""
    if isinstance(given, bool):
        return given, given
    if isinstance(given, list) and given:
        return given[0], given
    if isinstance(given, tuple) and len(given) in (3, 4) and all(isinstance(v, (int, float)) for v in given):
        low, high, first = (float(v) for v in given[:3])
        if low <= first <= high and low < high:
            return first, (low, high, first, float(given[3]) if len(given) == 4 else (high - low) / 40)
    raise ValueError(
        f"control {name!r} must be a list, True or False, or (lowest, highest, first) with lowest <= first <= highest, "
        f"got {given!r}"
    )

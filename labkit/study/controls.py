"""The controls of a bench: widgets made from values, each checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["choices", "make_controls", "offer", "settled", "values_of"]

BUTTONS = 6  # a list of more values is a drop-down list


def choices(who: str, given: Any, kinds: tuple[type, ...] = (str, int, float)) -> list[Any]:
    """Check options before anything runs.

    Raises:
        ValueError: It is something else.

    >>> choices("control 'size'", [64, 256])
    [64, 256]
    """
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) < 2:
        raise ValueError(f"{who} needs a list of at least two values, got {given!r}")
    for value in given:
        if not isinstance(value, kinds):
            what = "a text" if kinds == (str,) else "a text, a number or a bool"
            raise ValueError(f"{who}: a value is {what}, got {value!r}")
    labels = [str(value) for value in given]
    for value, label in zip(given, labels, strict=True):
        if list(given).count(value) > 1 or labels.count(label) > 1:
            raise ValueError(f"{who} has {value!r} twice")
    return list(given)


def make_controls(widgets: Any, run: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Make the widget of each control of a bench, as `Bench` describes them.

    Raises:
        ValueError: One is something else, or `run` does not take exactly these.
    """
    _check_names(run, given)
    return {name: _control(widgets, name, one) for name, one in given.items()}


def values_of(control: Any, name: str, wanted: Sequence[Any] | None) -> list[Any]:
    """Check values of a control, which has a name; without values list all of a list or check box.

    Raises:
        ValueError: It has no such value, or has none to list.
    """
    known = [False, True] if isinstance(control.value, bool) else list(getattr(control, "options", ()))
    values = known if wanted is None else list(wanted)
    if not values:
        raise ValueError(f"give values of {name!r}: only a list or a check box has values to go through")
    for value in values:
        if hasattr(control, "min"):
            has = isinstance(value, (int, float)) and control.min <= value <= control.max
        else:
            has = not known or value in known
        if not has:
            raise ValueError(f"control {name!r} has no value {value!r}")
    return values


def settled(value: Any) -> Any:
    """A control's value; a slider adds up its steps, and ends beside the number that it shows.

    >>> settled(0.1 + 0.2)
    0.3
    """
    return float(f"{value:.12g}") if isinstance(value, float) else value


def offer(control: Any) -> str:
    """Say what a control offers, such as 'size (64, 256)'."""
    options = getattr(control, "options", ())
    if options:
        return f"{control.description} ({', '.join(str(one) for one in options)})"
    if hasattr(control, "min"):
        return f"{control.description} ({control.min:g} to {control.max:g})"
    return str(control.description)


def _check_names(run: Callable[..., Any], controls: Mapping[str, Any]) -> None:
    if not controls:
        raise ValueError("a bench needs at least one control")
    takes = inspect.signature(run).parameters
    kinds = {one.kind for one in takes.values()}
    named = [n for n, p in takes.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for name in controls:
        if name not in named and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise ValueError(
                f"control {name!r}: run takes no {name}, it takes {', '.join(named) or 'nothing'}"
            )
    for name in named:
        if name not in controls and takes[name].default is inspect.Parameter.empty:
            raise ValueError(f"run needs {name!r}, and no control has that name")


def _control(w: Any, name: str, given: Any) -> Any:
    who = f"control {name!r}"
    if isinstance(given, bool):
        made = w.Checkbox(given, indent=False)
    elif isinstance(given, str):
        made = w.Text(given)
    elif isinstance(given, list):
        kind = w.ToggleButtons if len(given) <= BUTTONS else w.Dropdown
        made = kind(options=choices(who, given))
    elif isinstance(given, tuple):
        made = _slider(w, who, given)
    else:
        raise ValueError(
            f"{who} is a list of values, (low, high) or (low, high, step), True or False, or a text, got {given!r}"
        )
    made.description = name.replace("_", " ")
    made.style.description_width = "initial"
    made.layout.margin = "2px 18px 2px 0"  # or its label stands against its neighbour's
    if isinstance(made, w.ToggleButtons):
        made.style.button_width = "auto"
    if made.has_trait("continuous_update"):
        made.continuous_update = False  # not while a reader types or drags
    return made


def _slider(w: Any, who: str, given: tuple[Any, ...]) -> Any:
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in given)
    if not numbers or len(given) not in (2, 3) or given[0] >= given[1] or (given[2:] and given[2] <= 0):
        raise ValueError(
            f"{who}: a slider is (low, high) or (low, high, step) of numbers, low below high, got {given!r}; other "
            "values stand in a list"
        )
    whole = all(isinstance(one, int) for one in given)
    low, high, *step = given
    kind = w.IntSlider if whole else w.FloatSlider
    return kind(low, min=low, max=high, step=step[0] if step else 1 if whole else (high - low) / 10)

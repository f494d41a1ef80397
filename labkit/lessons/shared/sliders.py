"""Sliders of calculators: rates and sizes over several orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["log_sliders"]


def log_sliders(
    widgets: Any,
    words: Mapping[str, tuple[str, float, float]],
    first: Mapping[str, float],
    step: float = 0.05,
) -> dict[str, Any]:
    """Make a logarithmic slider for each number.

    Args:
        widgets: the module ipywidgets.
        words: for each number its text, the lowest and the highest value.
        first: the values to begin with.
        step: of the exponent.

    Returns:
        The sliders by name.
    """
    return {
        name: widgets.FloatLogSlider(
            value=first[name], base=10, min=math.log10(low), max=math.log10(high), step=step,
            description=text, continuous_update=False, readout_format=".3g",
            layout=widgets.Layout(width="430px"), style={"description_width": "150px"},
        )
        for name, (text, low, high) in words.items()
    }  # fmt: skip

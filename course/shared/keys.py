"""Keys of legends: a mark, and a patch with a hatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

__all__ = ["mark", "patch"]

Key = Callable[[Axes, float, float], Any]


def mark(shape: str, colour: str, size: float, **look: Any) -> Key:
    """A legend's key for a mark of matplotlib's, such as 'o'; `size` in points."""
    return lambda ax, x, y: ax.plot([x + 0.1], [y + 0.06], shape, color=colour, markersize=size, **look)


def patch(colour: str, hatch: str | None = None, edge: str = "white", width: float = 0.5) -> Key:
    """A legend's key for bars of a colour and a hatch."""
    look = {"facecolor": colour, "hatch": hatch, "edgecolor": edge, "linewidth": width}
    return lambda ax, x, y: ax.add_patch(Rectangle((x, y - 0.01), 0.2, 0.14, **look))

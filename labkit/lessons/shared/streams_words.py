"""Many short words in one artist: what takes matplotlib a text object each takes a millisecond together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

__all__ = ["Words", "add_words"]

POINT = 1 / 72


class Words(PathCollection):
    """Words at places of an Axes, drawn as outlines; `words` has them as text, in order."""

    def __init__(self, words: Sequence[str], size: float, colours: Sequence[str], **look: Any) -> None:
        super().__init__(
            [_outline(word, size) for word in words], facecolors=list(colours), linewidths=0, **look
        )
        self.words = list(words)


def add_words(
    ax: Axes,
    words: Sequence[str],
    places: Sequence[tuple[float, float]],
    colours: Sequence[str],
    size: float = 7.5,
) -> Words | None:
    """Write each word centred at its place, in data coordinates; `size` in points. None where there are no words.

    >>> from labkit.views.style import Figure
    >>> add_words(Figure().add_axes((0, 0, 1, 1)), ["a", "b"], [(0, 0), (1, 1)], ["black", "black"]).words
    ['a', 'b']
    """
    if not words:
        return None
    found = Words(words, size, colours, offsets=list(places), offset_transform=ax.transData, zorder=6)
    figure: Any = ax.figure
    # outlines are in points: of the figure, whatever its dots per inch
    found.set_transform(Affine2D().scale(POINT) + figure.dpi_scale_trans)
    ax.add_collection(found, autolim=False)
    return found


@functools.lru_cache(maxsize=4096)
def _outline(word: str, size: float) -> Path:
    """The word's outline in points, its middle at 0, 0."""
    path = TextPath((0, 0), word, size=size, prop=FontProperties(), usetex=False)
    if not len(path.vertices):
        return Path([(0.0, 0.0)])
    box = path.get_extents()
    # upright digits and letters share a baseline: centred by the height of a capital, not by each word's own
    return Affine2D().translate(-(box.x0 + box.x1) / 2, -0.36 * size).transform_path(path)

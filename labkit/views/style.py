"""The style of every figure: colours by meaning, text that fits, a layout in inches, the run label at the lower right.

Importing this changes no global matplotlib setting. Figures draw inside `styled` and are `Figure` objects that pyplot
does not know, so a notebook shows a returned figure once and nothing stays open.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure as _Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from oddrank.strip.kinds import BLACK, HATCHES, KINDS, SHAPES, WHITE, contrast, ink_on
from PIL import Image

__all__ = ["BLACK", "HATCHES", "KINDS", "SHAPES", "WHITE", "contrast", "ink_on"]
__all__ += ["Figure", "Sheet", "label_figure", "styled"]

WIDTH = 10.0  # inches: the width of a notebook's output cell at DPI
DPI = 110
SMALL, NORMAL, TITLE = 8.5, 9.5, 12.0
INK, QUIET, FAINT = "#222222", "#666666", "#E6E6E6"

# What a stream or its host does; in the timelines of streams only, so the colours above may return.
STREAM_KINDS: dict[str, tuple[str, str]] = {
    "compute": KINDS["compute"],
    "collective": KINDS["collective"],
    "copy": ("#E69F00", "copy"),
    "launch": ("#CC79A7", "launch"),
    "synchronize": ("#56B4E9", "host stands still"),
}

COLOURS = ("#000000", "#D55E00", "#009E73", "#56B4E9", "#CC79A7")  # of lines that a figure compares

STYLE = {
    "figure.dpi": DPI,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same widths on every machine
    "font.size": NORMAL,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.labelsize": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.axisbelow": True,
}

F = TypeVar("F", bound=Callable[..., Any])


def styled(draw: F) -> F:
    """Decorate a drawing function so that it runs under labkit's style; the caller's rcParams stay as they were."""

    @functools.wraps(draw)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return inside  # type: ignore[return-value]


class Figure(_Figure):
    """A matplotlib Figure that shows itself in a notebook without pyplot, whichever backend is active.

    `summary` says in one line what the picture shows. A saved notebook keeps it as the alt text of the picture and as
    the plain text of the output. `data` is what the output has beside the picture, by MIME type.
    """

    summary: str = ""
    data: Mapping[str, Any] = MappingProxyType({})

    def png(self, quick: bool = False) -> bytes:
        """Render the figure as PNG, in the 256 colours that differ least from its own: edges of letters may differ.

        Args:
            quick: all colours, a larger file in less time, for widgets.
        """
        drawn, packed = io.BytesIO(), io.BytesIO()
        with mpl.rc_context({"text.hinting": "none"} if quick else {}):  # hinting is a third of drawing text
            self.savefig(drawn, format="png", dpi=self.dpi, pil_kwargs={"compress_level": 1})
        if quick:
            return drawn.getvalue()
        colours = Image.open(drawn).convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE)
        colours.save(packed, format="png", optimize=True)  # a third of the bytes of a notebook's pictures
        return packed.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The data, and the metadata of the picture; the picture itself comes from `_repr_png_`."""
        return {**self.data}, {"image/png": {"alt": self.summary}} if self.summary else {}

    def __repr__(self) -> str:
        return self.summary or super().__repr__()


@functools.cache
def _renderer() -> RendererAgg:
    return RendererAgg(1, 1, 72)


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float = NORMAL, weight: str = "normal") -> float:
    """The width of one line of text in labkit's font, in inches; `size` is in points, `weight` 'normal' or 'bold'."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return _renderer().get_text_width_height_descent(text.replace("$", ""), font, ismath=False)[0] / 72


def wrap(text: str, width: float, size: float = NORMAL, weight: str = "normal") -> list[str]:
    """Break text at spaces into lines at most `width` inches wide."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size, weight) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def cut(text: str, width: float, size: float = NORMAL) -> str:
    """Shorten text to `width` inches, with an ellipsis where something was left off."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def label_figure(fig: _Figure, label: str) -> None:
    """Write the run label, such as 'gloo · cpu', at the lower right of a figure; it replaces an earlier one."""
    for old in [t for t in fig.texts if t.get_gid() == "run-label"]:
        old.remove()
    if not label:
        return
    up = 0.08 / fig.get_figheight()
    right = 1 - 0.12 / fig.get_figwidth()
    frame = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "#999999", "linewidth": 0.7}
    text = fig.text(
        right, up, label, ha="right", va="bottom", fontsize=SMALL, color=INK, bbox=frame, gid="run-label"
    )
    text.set_in_layout(False)


class Sheet:
    """A figure filled from the top in inches, so that lanes, lists and legends never overlap, however many there are.

    `top` is the next free line. `finish` sets the height and turns inches into matplotlib's fractions.

    >>> sheet = Sheet()
    >>> ax = sheet.axes(left=1, width=8, height=2)
    >>> print(f"{sheet.finish('simulated').get_figheight():.2f} inches")
    2.57 inches
    """

    def __init__(self, width: float = WIDTH) -> None:
        self.fig = Figure(figsize=(width, 1), dpi=DPI)
        self.width = width
        self.top = 0.12
        self._placed: list[Callable[[float], None]] = []
        self._said: list[str] = []

    def say(self, *sentences: str) -> None:
        """Add sentences to the text summary of the figure; titles are in it already."""
        self._said += [sentence for sentence in sentences if sentence]

    def axes(self, left: float, width: float, height: float, top: float | None = None) -> Axes:
        """Add axes at a place in inches; without `top` at the next free line, which moves on."""
        if top is None:
            top = self.top
            self.top += height
        bottom = top + height
        ax = self.fig.add_axes((0.0, 0.0, 1.0, 1.0), label=f"axes {len(self.fig.axes)}")
        x, wide = left / self.width, width / self.width
        self._placed.append(lambda total: ax.set_position((x, 1 - bottom / total, wide, height / total)))
        return ax

    def text(self, text: str, left: float = 0.15, top: float | None = None, **style: Any) -> None:
        """Write one line of text; `left` and `top` as for `axes`, the rest as for matplotlib's `Figure.text`."""
        style = {"fontsize": NORMAL, "va": "top", "parse_math": False, **style}
        if top is None:
            top = self.top
            self.top += style["fontsize"] / 72 * 1.45
        artist = self.fig.text(left / self.width, 0, text, **style)
        self._placed.append(lambda total: artist.set_y(1 - top / total))

    def title(self, text: str, subtitle: str = "") -> None:
        """Write the finding in bold and a quiet subtitle, both wrapped to the width of the figure."""
        room = self.width - 0.3
        self.say(text, subtitle)
        for line in wrap(text, room, TITLE, "bold"):
            self.text(line, fontsize=TITLE, fontweight="bold")
        for line in wrap(subtitle, room, NORMAL) if subtitle else []:
            self.text(line, color=QUIET)
        self.top += 0.06

    def legend(
        self, entries: list[tuple[str, Callable[[Axes, float, float], Any]]], left: float = 0.15
    ) -> None:
        """Add rows of legend keys: pairs of a text and a function `draw(ax, x, y)` that draws its key, in inches."""
        rows: list[list[tuple[float, Any, str]]] = [[]]
        x = left
        for text, draw in entries:
            wide = 0.26 + text_width(text, SMALL) + 0.22
            if rows[-1] and x + wide > self.width - 0.1:
                rows.append([])
                x = left
            rows[-1].append((x, draw, text))
            x += wide
        for row in rows:
            ax = self.axes(0, self.width, 0.21)
            ax.set(xlim=(0, self.width), ylim=(0.21, 0))
            ax.set_axis_off()
            ax.set_label("legend")
            for x, draw, text in row:
                draw(ax, x, 0.04)
                ax.text(x + 0.26, 0.1, text, fontsize=SMALL, va="center", color=INK)
        self.top += 0.06

    def finish(self, label: str = "", footnote: str = "") -> Figure:
        """Set the height, place everything, and write the footnote (lower left) and the run label (lower right)."""
        room = self.width - 0.45 - (text_width(label, SMALL) + 0.3 if label else 0)
        lines = wrap(footnote, room, SMALL - 0.5) if footnote else []
        total = self.top + max(0.45 if label else 0.1, 0.16 * len(lines) + 0.2)
        self.fig.set_size_inches(self.width, total)
        for place in self._placed:
            place(total)
        look = {"fontsize": SMALL - 0.5, "color": QUIET, "va": "bottom"}
        for i, line in enumerate(reversed(lines)):
            self.fig.text(0.15 / self.width, (0.1 + 0.16 * i) / total, line, **look)
        label_figure(self.fig, label)
        self.fig.summary = " ".join(f"{said.rstrip('.')}." for said in self._said)
        self.fig.summary += f" [{label}]" if label else ""
        return self.fig


Key = Callable[[Axes, float, float], Any]  # draws a key at x, y: a box of 0.2 x 0.14 inches


def swatch(kind: str) -> Key:
    """The legend key of a kind of KINDS or STREAM_KINDS, as tall as its bar in a lane."""
    colour = (STREAM_KINDS.get(kind) or KINDS[kind])[0]
    top, bottom = SHAPES[kind]
    look = {"facecolor": colour, "edgecolor": "white", "linewidth": 0, "hatch": HATCHES.get(kind)}
    return lambda ax, x, y: ax.add_patch(
        Rectangle((x, y + 0.14 * top - 0.01), 0.2, 0.14 * (bottom - top), **look)
    )


def line(colour: str, dashes: str, marker: str = "") -> Key:
    """A legend's key for a line with matplotlib's dashes, '' for none, and a marker in its middle."""
    return lambda ax, x, y: ax.plot(
        [x, x + 0.1, x + 0.2], [y + 0.06] * 3, linestyle=dashes or "none", color=colour, linewidth=1.8,
        marker=marker or None, markevery=[1], markersize=5.5,
    )  # fmt: skip


def patch(colour: str, hatch: str | None = None, width: float = 0.5) -> Key:
    """A legend's key for bars of a colour and a hatch."""
    look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": width}
    return lambda ax, x, y: ax.add_patch(Rectangle((x, y - 0.01), 0.2, 0.14, **look))


def empty_figure(sheet: Sheet, said: str, label: str, title: str | None = None) -> Figure:
    """Finish an empty sheet for a table without rows: the figure says what is missing, under a title or that."""
    sheet.title(title or said)
    sheet.text(f"{said}: there is nothing to draw.", color=QUIET)
    sheet.top += 0.2
    return sheet.finish(label)

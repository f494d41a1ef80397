"""What a cell of a lesson shows, as HTML that also stands in a saved notebook, a book and on a code host."""

from __future__ import annotations

import base64
import html
import io
import re
import sys
from dataclasses import dataclass
from typing import Any

__all__ = ["LIVE", "RUN", "TWIN", "Fold", "as_html", "fold", "live", "saved", "show"]

RUN = "Run this cell"
LIVE, TWIN = "labkit-live", "labkit-twin"  # classes of the widgets of an output, and of what stands for them
# All that needs no JavaScript. The twin is hidden while the widgets are there. JupyterLab marks widgets whose kernel
# is gone, and its own sign for it is a broken link on each of them.
STYLE = f"""<style>
.jp-OutputArea:has(.{LIVE}) .{TWIN} {{display: none}}
.{LIVE}.jupyter-widgets-disconnected::before {{
  content: "The kernel that made this is gone. {RUN} again, after those above it: Run > Run All Above Selected Cell.";
  display: block; font: bold 14px sans-serif; color: #b00020; background: #fff4f4; padding: 4px 0; align-self: auto;
}}
.{LIVE} .jupyter-widgets-disconnected::before {{display: none}}
.{LIVE} .jupyter-widgets-disconnected {{pointer-events: none; opacity: 0.6}}
.{LIVE} .jupyter-widgets-disconnected .jupyter-widgets-disconnected {{opacity: 1}}
</style>"""


def as_html(drawn: Any, alt: str = "") -> str:
    """Turn HTML text, a figure of labkit or matplotlib, or an object with `_repr_html_` into HTML.

    Raises:
        TypeError: It is something else.

    >>> as_html("<b>5</b>")
    '<b>5</b>'
    """
    if isinstance(drawn, str):
        return drawn
    if (text := getattr(drawn, "_repr_html_", lambda: None)()) is not None:
        return text
    if not hasattr(drawn, "savefig"):
        raise TypeError(
            f"draw returned {'nothing' if drawn is None else type(drawn).__name__}: it returns a figure, HTML text, "
            "or an object with _repr_html_"
        )
    if hasattr(drawn, "png"):
        data = drawn.png(quick=True)
    else:
        file = io.BytesIO()
        drawn.savefig(file, format="png", bbox_inches="tight")
        data = file.getvalue()
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
            pyplot.close(drawn)  # else the cell shows it once more
    alt = html.escape(getattr(drawn, "summary", "") or alt, quote=True)
    return f'<img style="max-width:100%" alt="{alt}" src="data:image/png;base64,{_encoded(data)}">'


def saved(page: str) -> str:
    """Turn each inline drawing of a page into an image: notebooks that are not trusted, as every clone, drop it.

    >>> saved("<p><svg width='9'><title>a</title></svg></p>")
    '<p><img style="max-width:100%" alt="a" src="data:image/svg+xml;base64,...'
    """

    def image(found: re.Match[str]) -> str:
        drawing = found[0]
        if "xmlns=" not in drawing.partition(">")[0]:  # a file needs it, HTML does not
            drawing = drawing.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        title = re.search(r"<title>(.*?)</title>|aria-label=[\"'](.*?)[\"']", drawing, re.DOTALL)
        alt = html.escape(html.unescape((title[1] or title[2]) if title else "a drawing"), quote=True)
        data = _encoded(drawing.encode())
        return f'<img style="max-width:100%" alt="{alt}" src="data:image/svg+xml;base64,{data}">'

    return re.sub(r"<svg\b.*?</svg>", image, page, flags=re.DOTALL)


def fold(say: str, page: str) -> str:
    """Fold HTML below a line of text, so that a click opens it.

    >>> fold("Measured", "<b>5</b>")
    '<details><summary style="cursor:pointer">Measured</summary><b>5</b></details>'
    """
    return f'<details><summary style="cursor:pointer">{html.escape(say)}</summary>{page}</details>'


@dataclass(frozen=True, repr=False)
class Fold:
    """HTML that is saved folded; its text says nothing of it, so that no list of outputs gives it away."""

    say: str
    picture: str

    def _repr_html_(self) -> str:
        return fold(self.say, self.picture)

    def __repr__(self) -> str:
        return f"{self.say} (folded)"


def live(widgets: Any, rows: list[Any]) -> Any:
    """Stack widgets in a box that says so itself when its kernel is gone."""
    style = widgets.HTML(STYLE)
    style.layout.display = "none"  # it counts all the same
    box = widgets.VBox([style, *rows])
    box.add_class(LIVE)
    return box


def show(box: Any, twin: str, text: str) -> None:
    """Show widgets, and HTML that stands for them where there are none, as in a saved notebook and after a restart."""
    from IPython.display import display

    # the twin first: without its kernel JupyterLab says "Loading widget..." in the place of the widgets
    display({"text/html": f'<div class="{TWIN}">{saved(twin)}</div>', "text/plain": text}, raw=True)
    if box is not None:
        bundle = box._repr_mimebundle_() or {}
        kinds = [kind for kind in bundle if kind.endswith("widget-view+json")]
        display({**{kind: bundle[kind] for kind in kinds}, "text/plain": ""}, raw=True)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()

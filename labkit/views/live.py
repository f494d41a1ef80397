"""A widget with a static twin: the figure and the line of text stay where the widget cannot be shown."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from labkit.views.style import Figure

__all__ = ["Live"]

WIDGET = "application/vnd.jupyter.widget-view+json"


class Live:
    """Shows a widget, and below it `figure` and `text`, which say the same without a kernel.

    A class of its own gives `_build(ipywidgets)`, which makes the widget and hands its parts to `to_close`. Showing it
    again from the same cell closes the widgets of the time before: ipywidgets keeps every widget alive until then.
    """

    _shown: ClassVar[dict[str, Live]] = {}

    def __init__(self, figure: Figure, text: str) -> None:
        self.figure, self.text = figure, text
        self._widget: Any = None
        self._close: list[Callable[[], None]] = []

    @property
    def widget(self) -> Any:
        """The live widget, or None where ipywidgets is not installed."""
        if self._widget is None:
            try:
                import ipywidgets
            except ImportError:
                return None
            self._widget = self._build(ipywidgets)
        return self._widget

    def close(self) -> None:
        """Let go of the widgets and of everything that watches them; the static twin stays."""
        while self._close:
            self._close.pop()()
        self._widget = None

    def to_close(self, controls: Sequence[Any], others: Sequence[Any]) -> None:
        """Remember what `close` has to let go of: controls that are watched, and all other parts."""

        def close() -> None:
            for control in controls:
                control.unobserve_all()
            for part in (*controls, *others):
                for own in (getattr(part, "layout", None), getattr(part, "style", None), part):
                    if own is not None:
                        own.close()

        self._close.append(close)

    def redrawn(
        self,
        widgets: Any,
        controls: Mapping[str, Any],
        draw: Callable[..., tuple[Figure, str]],
        said: Callable[[str], str] = html.escape,
        refused: Callable[[ValueError], str] = lambda error: html.escape(str(error)),
        row: Any = None,
    ) -> Any:
        """The controls above a picture and a line, both made anew by `draw(**values)` whenever a control changes.

        said, refused: that line, and a ValueError instead of it, as HTML; after an error the picture stays. row: the
        widget that holds the controls, if they are not to stand one below the other.
        """
        made = list(controls.values())
        picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        text = widgets.HTML()

        def again(_: Any = None) -> None:
            try:
                figure, line = draw(**{name: control.value for name, control in controls.items()})
            except ValueError as error:
                text.value = refused(error)
                return
            picture.value, text.value = figure.png(quick=True), said(line)

        for control in made:
            control.observe(again, "value")
        again()
        box = widgets.VBox([*(made if row is None else [row]), picture, text])
        self.to_close(made, [picture, text, box] if row is None else [row, picture, text, box])
        return box

    def _build(self, widgets: Any) -> Any:
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self.widget is not None:
            self._replace(_cell())
            bundle = self._widget._repr_mimebundle_() or {}
            data = bundle[0] if isinstance(bundle, tuple) else bundle
            if WIDGET in data:
                display({WIDGET: data[WIDGET], "text/plain": self.text}, raw=True)
        said = {"image/png": {"alt": self.text}}
        display({"image/png": self.figure.png(), "text/plain": self.text}, metadata=said, raw=True)
        print(self.text.replace(" | ", "\n"))  # a front end breaks one long line in the middle of words

    def _replace(self, cell: str) -> None:
        """Close what the same cell showed before."""
        before = Live._shown.get(cell)
        if before is not None and before is not self:
            before.close()
        Live._shown[cell] = self

    def __repr__(self) -> str:
        return self.text


def _cell() -> str:
    """The notebook cell that is running, as far as the front end says."""
    from IPython import get_ipython

    header = getattr(get_ipython(), "parent_header", None) or {}
    return str(header.get("metadata", {}).get("cellId", "") if isinstance(header, dict) else "")

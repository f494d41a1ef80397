"""Widgets with a static twin: the figure that stays where a widget cannot be shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from labkit.views.style import Figure

__all__ = ["InteractiveFigure"]

WIDGET = "application/vnd.jupyter.widget-view+json"


class InteractiveFigure:
    """A widget that redraws a figure, shown above a static figure that says the same without a kernel.

    A subclass implements `_build(ipywidgets)`, which makes the widget. Showing the object again from the same cell
    closes the widgets of the previous time: ipywidgets keeps every widget alive until then.

    Args:
        figure: the static twin. Its title says what it shows, and its summary is the text of the picture.
    """

    _shown: ClassVar[dict[str, InteractiveFigure]] = {}

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self._widget: Any = None
        self._parts: list[Any] = []

    @property
    def widget(self) -> Any:
        """The live widget, made on first use; None where ipywidgets is not installed."""
        if self._widget is None:
            try:
                import ipywidgets
            except ImportError:
                return None
            self._widget = self._build(ipywidgets)
        return self._widget

    def close(self) -> None:
        """Close the widgets and stop watching them; the static twin stays."""
        for part in self._parts:
            part.unobserve_all()
            for own in (getattr(part, "style", None), part.layout, part):
                if own is not None:
                    own.close()
        self._parts, self._widget = [], None

    def picture_with_controls(
        self, widgets: Any, controls: Mapping[str, Any], draw: Callable[..., Figure]
    ) -> Any:
        """Build a box of controls above a picture, redrawn whenever a control changes.

        Args:
            widgets: the ipywidgets module.
            controls: widgets by the keyword of `draw` that takes their value.
            draw: makes the figure.

        Returns:
            The box.
        """
        made = list(controls.values())
        picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

        def again(_: Any = None) -> None:
            figure = draw(**{name: control.value for name, control in controls.items()})
            picture.value = figure.png(quick=True)

        for control in made:
            control.observe(again, "value")
        again()
        box = widgets.VBox([*made, picture])
        self._parts += [*made, picture, box]
        return box

    def _build(self, widgets: Any) -> Any:
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self.widget is not None:
            before = self._shown.get(cell := _cell())
            if before is not None and before is not self:
                before.close()
            self._shown[cell] = self
            bundle = self._widget._repr_mimebundle_()
            display({WIDGET: bundle[WIDGET], "text/plain": repr(self)}, raw=True)
        display(self.figure)

    def __repr__(self) -> str:
        return repr(self.figure)


def _cell() -> str:
    """The id of the running notebook cell, as far as the front end gives it."""
    from IPython import get_ipython

    header = getattr(get_ipython(), "parent_header", None) or {}
    return str(header.get("metadata", {}).get("cellId", "") if isinstance(header, dict) else "")

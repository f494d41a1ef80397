"""Every recorded report is drawn: no text is cut by the edge, lies on another one, or is hard to read on its ground."""

from __future__ import annotations

import contextlib
import pkgutil
import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from labkit import files
from labkit.report import Report
from labkit.views import style


def view_is_there(path):
    """Whether a report has a view; one that no lesson draws any more is gone, and the report is data."""
    view = re.search(r'"view": "([\w.]+:\w+)"', path.read_text())
    with contextlib.suppress(ImportError, AttributeError):
        return bool(view and pkgutil.resolve_name(view[1]))
    return False


NEWEST = {
    path.stem: path for path in sorted(files.ours("data/recorded").glob("*/*.json")) if view_is_there(path)
}
MARGIN, READABLE = 2, 4.5  # pixels; WCAG's contrast for small text
SHARE = 0.12  # of the ground under a text: a thin line of a grid is not what it is read on


def texts(figure):
    """All that is written and shown: a tick beyond the ends of its axis has a label and is not drawn."""
    found = list(figure.texts)
    for ax in figure.axes:
        found += ax.texts
        if not ax.axison:
            continue
        found += [ax.title, ax.xaxis.label, ax.yaxis.label]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def faults(figure):
    figure.draw_without_rendering()
    written = texts(figure)
    boxes = [text.get_window_extent() for text in written]
    found = []
    for i, (text, box) in enumerate(zip(written, boxes, strict=True)):
        inside = figure.bbox.padded(-MARGIN)
        if box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1:
            found.append(f"cut: {text.get_text()}")
        over = [j for j in range(i) if boxes[j].padded(-1.5).overlaps(box.padded(-1.5))]
        found += [f"overlap: {written[j].get_text()} and {text.get_text()}" for j in over]
    return found + hard_to_read(figure, written, boxes)


def hard_to_read(figure, written, boxes):
    """Texts whose colour is too near to the one of the ground that they stand on, which is drawn without them."""
    inks = [to_hex(text.get_color()).upper() for text in written]
    for text in written:
        text.set_color("none")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ground = np.flipud(np.asarray(canvas.buffer_rgba())[..., :3])
    found = []
    for text, box, ink in zip(written, boxes, inks, strict=True):
        x0, x1, y0, y1 = (max(int(edge), 0) for edge in (box.x0, box.x1, box.y0, box.y1))
        under = ground[y0 : y1 + 1, x0 : x1 + 1].reshape(-1, 3)
        shades, count = np.unique(under, axis=0, return_counts=True)
        common = ["#{:02X}{:02X}{:02X}".format(*shade) for shade in shades[count > SHARE * len(under)]]
        if min(style.contrast(ink, shade) for shade in common) < READABLE:
            found.append(f"faint: {text.get_text()}, {ink} on {', '.join(common)}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", NEWEST.values(), ids=NEWEST)
def test_each_text_of_a_recorded_figure_can_be_read(path):
    figure = Report.load(path).figure()
    assert figure.summary and faults(figure) == []

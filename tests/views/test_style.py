"""The look: no global setting touched, text that fits, and figures that a notebook shows exactly once."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from labkit.views import style


@style.styled
def coloured():
    """A figure of more colours than a saved picture has."""
    sheet = style.Sheet()
    sheet.legend([(words, style.swatch(kind)) for kind, (_, words) in style.KINDS.items()])
    for words in ("cache lookup & guards", "Python in between"):
        for colour, _ in style.KINDS.values():
            sheet.text(words, color=colour)
    return sheet.finish("simulated")


def test_drawing_leaves_the_readers_settings_alone():
    before = dict(mpl.rcParams)
    mpl.rcParams["font.size"] = 33.0
    try:
        figure = coloured()
        assert mpl.rcParams["font.size"] == 33.0
        assert all(text.get_fontsize() < 14 for text in figure.texts)
    finally:
        mpl.rcParams.update(before)


def test_a_saved_picture_is_small_and_looks_the_same():
    for figure in (coloured(),):
        small, out = figure.png(), io.BytesIO()
        figure.savefig(out, format="png", dpi=figure.dpi)
        full, kept = (
            np.asarray(Image.open(io.BytesIO(raw)).convert("RGB")) for raw in (out.getvalue(), small)
        )
        codes, counts = np.unique(full.reshape(-1, 3), axis=0, return_counts=True)
        assert len(small) < 0.55 * len(out.getvalue())
        apart = np.abs(full.astype(int) - kept).max(axis=2)
        for colour in codes[np.argsort(counts)[-10:]]:
            assert not apart[(full == colour).all(axis=2)].any(), "a filled area has another colour"
        assert (apart > 8).mean() < 0.002, "edges of letters and lines"
    assert len(codes) > 256


def test_no_figure_is_left_with_pyplot():
    import matplotlib.pyplot as plt

    coloured()
    assert plt.get_fignums() == []


@pytest.mark.parametrize("size", [8.0, 12.0])
def test_wrapped_and_cut_text_fits(size):
    text = "graph break in loop, after: Skip calling `torch.compiler.disable()`d function all_reduce " * 3
    lines = style.wrap(text, 3.0, size)
    assert " ".join(lines) == " ".join(text.split())
    assert max(style.text_width(line, size) for line in lines) <= 3.0
    short = style.cut(text, 3.0, size)
    assert short.endswith("…") and style.text_width(short, size) <= 3.0
    assert style.cut("fits", 3.0, size) == "fits"


def test_a_second_label_replaces_the_first():
    figure = style.Sheet().finish("simulated")
    style.label_figure(figure, "nccl")
    assert [t.get_text() for t in figure.texts] == ["nccl"]
    x, y = figure.texts[0].get_position()
    assert x > 0.9 and y < 0.3

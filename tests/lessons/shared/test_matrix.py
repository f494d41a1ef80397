"""The matrix of coloured cells: words where they belong, ink that can be read, nothing outside of a cell."""

from __future__ import annotations

import pytest

from course.shared.matrix import Cell, matrix
from labkit.views.style import Sheet, contrast


@pytest.mark.parametrize("xlabel", ["", "what changed"])
def test_each_cell_has_its_words_in_the_middle_and_ink_that_can_be_read(xlabel):
    colours = ("#000000", "#009E73", "#FFFFFF", "#F0E442")
    cells = [Cell(i // 2, i % 2, colour, f"cell {i}") for i, colour in enumerate(colours)]
    sheet = Sheet()
    top = sheet.top
    ax = matrix(sheet, ["one", "two\nlines"], ["left", "a head\nof two"], cells, height=0.4, xlabel=xlabel)
    assert sheet.top > top + 2 * 0.4
    sheet.finish()
    for i, (text, box) in enumerate(zip(ax.texts, ax.patches, strict=True)):
        assert text.get_text() == f"cell {i}"
        x, y = text.get_position()
        assert (int(y), int(x)) == divmod(i, 2) and box.contains_point(ax.transData.transform((x, y)))
        assert contrast(text.get_color(), colours[i]) > 4.5
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two\nlines"]
    assert ax.xaxis.get_ticks_position() == ("bottom" if xlabel else "top")


def test_words_that_do_not_fit_are_cut_and_a_second_line_moves_the_first_up():
    sheet = Sheet()
    long = "a sentence that no cell can hold " * 4
    ax = matrix(sheet, ["row"], ["x"] * 8, [Cell(0, 0, "#FFFFFF", long), Cell(0, 1, "#FFFFFF", "a", "b")])
    sheet.finish().canvas.draw()
    cut, first, second = ax.texts
    assert cut.get_text().endswith("…") and cut.get_window_extent().x1 < ax.transData.transform((1, 0))[0]
    assert first.get_position()[1] < 0.5 < second.get_position()[1]

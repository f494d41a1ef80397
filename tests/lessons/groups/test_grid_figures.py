"""A grid of ranks drawn: groups and bytes, one box a rank."""

from __future__ import annotations

import pytest

from course.groups.grid_figures import mesh_grid

ROWS, COLUMNS = [[0, 1], [2, 3]], [[0, 2], [1, 3]]


def parts(figure, begins: str) -> list[str]:
    ax = next(ax for ax in figure.axes if ax.get_label() == "mesh")
    return sorted(p.get_gid() for p in ax.patches if (p.get_gid() or "").startswith(begins))


def said(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_every_rank_has_a_box_and_every_link_an_arrow():
    sends = {pair: 1024 for pair in ((0, 2), (2, 0), (1, 3), (3, 1))}
    figure = mesh_grid(ROWS, ("dp", "tp"), groups=COLUMNS, sends=sends, title="Along dp", label="gloo · cpu")
    assert parts(figure, "rank ") == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert parts(figure, "sends ") == ["sends 0 2", "sends 1 3", "sends 2 0", "sends 3 1"]
    words = said(figure)
    assert words.count("1 KiB") == 4 and {"dp", "tp", "A", "B"} <= set(words)
    assert figure.summary.startswith("Along dp") and figure.summary.endswith("[gloo · cpu]")


def test_boxes_stand_where_the_mesh_has_their_ranks_and_do_not_overlap():
    figure = mesh_grid(ROWS)
    ax = next(ax for ax in figure.axes if ax.get_label() == "mesh")
    box = {
        p.get_gid(): p.get_extents().frozen() for p in ax.patches if (p.get_gid() or "").startswith("rank")
    }
    assert box["rank 0"].x1 < box["rank 1"].x0 and box["rank 0"].y0 > box["rank 2"].y1
    assert box["rank 0"].x0 == box["rank 2"].x0 and box["rank 0"].y0 == box["rank 1"].y0


def test_notices_are_thin():
    figure = mesh_grid(ROWS, sends={(0, 1): 16000, (1, 0): 48})
    assert "15.6 KiB" in said(figure) and "48 B" not in said(figure)


@pytest.mark.parametrize(
    ("ranks", "more", "words"),
    [
        ([], {}, "rows of one length"),
        ([[0, 1], [2]], {}, "rows of one length"),
        ([[0, 0]], {}, "a rank stands once"),
        ([[0, 1]], {"groups": [[0, 7]]}, r"ranks \[7\] are not in the mesh"),
        ([[0, 1]], {"sends": {(0, 9): 1}}, r"ranks \[9\] are not in the mesh"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(ranks, more, words):
    with pytest.raises(ValueError, match=words):
        mesh_grid(ranks, **more)

"""A grid of ranks drawn: groups, bytes and values as they were measured, one box a rank; the explorer redraws it."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.lessons.shared import grid_figures as mesh
from labkit.lessons.shared.grid_figures import mesh_explorer, mesh_grid
from labkit.report import Report

GROUPS = {"dp": [[0, 2], [1, 3]], "tp": [[0, 1], [2, 3]], "world": [[0, 1, 2, 3]]}
PLACES = {"dp": [0, 0, 1, 1], "tp": [0, 1, 0, 1], "world": [0, 1, 2, 3]}


def report(sent: dict | None = None) -> Report:
    """What the experiment would give for two operations, with 1 KiB both ways within every group."""
    grid, results, links = [], [], []
    for axis, groups in GROUPS.items():
        for group in groups:
            for rank in group:
                grid.append((rank, axis, PLACES[axis][rank], group, axis))
                for operation in ("all_reduce", "broadcast"):
                    results.append((operation, axis, rank, group, [rank], [sum(group)]))
                    links += [(operation, axis, rank, other, 1024) for other in group if other != rank]
    links = links if sent is None else [(*where, n) for where, n in sent.items()]
    tables = {
        "results": pd.DataFrame(results, columns=["operation", "axis", "rank", "group", "before", "after"]),
        "bytes": pd.DataFrame(links, columns=["operation", "axis", "source", "target", "bytes"]),
        "grid": pd.DataFrame(grid, columns=["rank", "axis", "place", "group", "group_name"]),
    }
    return Report("mesh", "t", "gloo · cpu", tables, view="labkit.lessons.shared.grid_figures:figure")


def parts(figure, begins: str) -> list[str]:
    ax = next(ax for ax in figure.axes if ax.get_label() == "mesh")
    return sorted(p.get_gid() for p in ax.patches if (p.get_gid() or "").startswith(begins))


def said(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_every_rank_has_a_box_and_every_link_an_arrow():
    figure = report().figure("all_reduce", "dp")
    assert parts(figure, "rank ") == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert parts(figure, "sends ") == ["sends 0 2", "sends 1 3", "sends 2 0", "sends 3 1"]
    words = said(figure)
    assert words.count("1 KiB") == 4 and {"dp", "tp", "A", "B", "after  2", "after  4"} <= set(words)
    assert figure.summary.startswith(
        "all_reduce along dp: 2 groups of 2, a rank sends 1 KiB, no byte between groups"
    )
    assert figure.summary.endswith("[gloo · cpu]")


def test_boxes_stand_where_the_mesh_has_their_ranks_and_do_not_overlap():
    figure = report().figure("all_reduce", "tp")
    ax = next(ax for ax in figure.axes if ax.get_label() == "mesh")
    box = {
        p.get_gid(): p.get_extents().frozen() for p in ax.patches if (p.get_gid() or "").startswith("rank")
    }
    assert box["rank 0"].x1 < box["rank 1"].x0 and box["rank 0"].y0 > box["rank 2"].y1
    assert box["rank 0"].x0 == box["rank 2"].x0 and box["rank 0"].y0 == box["rank 1"].y0


def test_bytes_between_groups_are_said():
    odd = {("all_reduce", "dp", 0, 2): 1000, ("all_reduce", "dp", 0, 1): 1000}
    assert "1 pairs talk across groups" in report(odd).figure("all_reduce", "dp").summary


def test_notices_are_thin_and_bytes_that_nobody_saw_are_not_made_up():
    figure = report({("broadcast", "world", 0, 1): 16000, ("broadcast", "world", 1, 0): 48}).figure(
        "broadcast", "world"
    )
    assert "15.6 KiB" in said(figure) and "48 B" not in said(figure)
    assert "one group of 4, a rank sends 0 B to 15.6 KiB" in figure.summary
    unseen = report({}).figure("all_reduce", "dp")
    assert "bytes not known" in unseen.summary and not parts(unseen, "sends ")


def test_the_explorer_redraws_for_another_choice():
    found = mesh_explorer(report(), "broadcast", "tp")
    assert found.text.startswith("broadcast along tp: 2 groups of 2") and "rank 3: 3 becomes 5" in found.text
    figure, text = found.draw("all_reduce", "world")
    assert text.startswith("all_reduce over the world: one group of 4") and len(parts(figure, "sends ")) == 12
    operation, axis = found.widget.children[0].children
    axis.value = "dp"
    assert found.widget.children[1].value == found.draw("broadcast", "dp")[0].png(quick=True)
    assert "along dp" in found.widget.children[2].value
    assert list(operation.options) == ["all_reduce", "broadcast"]
    found.close()


def test_what_a_rank_holds_stands_in_its_box():
    figure = mesh_grid([[0, 1, 2]], ("dp", "tp"), holds={1: ["rows 2 to 3"]}, title="Shard(0)")
    assert "rank 1: rows 2 to 3" in figure.summary and "rows 2 to 3" in said(figure)


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


def test_what_was_not_run_is_named():
    with pytest.raises(ValueError, match="no axis 'pp' was run: there is dp, tp, world"):
        mesh.talk(report(), "all_reduce", "pp")
    with pytest.raises(ValueError, match="no operation 'gather' was run: there is all_reduce, broadcast"):
        mesh.talk(report(), "gather")

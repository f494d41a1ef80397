"""Placements drawn: what each rank holds before and after a redistribution, and a product's way through them."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from labkit.lessons.shared.grid_figures import mesh_grid
from labkit.lessons.shared.options import chosen
from labkit.views import style
from labkit.views.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, styled
from labkit.views.tables import table

__all__ = ["figure"]

WHICH = ("moves", "matmul", "one", "flow")
HELD, SUMMAND = "#56B4E9", "#E69F00"  # a part of the whole; a summand of it (hatched as well)
COLOURS = {"-": "#FFFFFF", "refused": "#BBBBBB"}
WORDS = {"R": "Replicate", "S(0)": "Shard(0)", "S(1)": "Shard(1)", "P": "Partial"}
SHORT = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
CELL = 0.31


def figure(report: Any, which: str = "moves", start: str = "S(0)", end: str = "R") -> Figure:
    """Draw a report of `labkit.lessons.dtensor.placements`.

    'moves': every redistribution and what it costs. 'one': who holds what before and after the one from `start` to
    `end`. 'matmul': every product of two placed matrices. 'flow': the way of the product of x, placed as `start`, and
    w, placed as `end`, with its collectives forward and backward. Raises ValueError for another figure or placement.
    """
    draw = {"moves": _moves, "matmul": _matmul}.get(which)
    if draw is not None:
        return draw(report)
    if which not in WHICH:
        raise ValueError(f"no figure {which!r} of this report: there is {', '.join(WHICH)}")
    chosen([start, end], WORDS, "placement")
    return _one(report, start, end) if which == "one" else _flow(report, start, end)


def words(collectives: str) -> str:
    """Collectives as a figure says them.

    >>> words("2 all_gather_into_tensor"), words("-")
    ('2 all_gather', 'nothing')
    """
    for long, brief in SHORT.items():
        collectives = collectives.replace(long, brief)
    return {"-": "nothing"}.get(collectives, collectives)


def tile(
    ax: Axes, x: float, y: float, cell: float, side: int, rank: int, ranks: int, placed: str, held: Any = None
) -> None:
    """The whole matrix as a grid of cells, those that the rank holds filled, with their numbers where given."""
    part = side // ranks
    for i in range(side):
        for j in range(side):
            mine = {"R": True, "P": True, "S(0)": i // part == rank, "S(1)": j // part == rank}[placed]
            face = (SUMMAND if placed == "P" else HELD) if mine else "white"
            hatch = "///" if mine and placed == "P" and held is None else None
            look = {"facecolor": face, "edgecolor": "#999999", "linewidth": 0.6, "hatch": hatch}
            ax.add_patch(Rectangle((x + j * cell, y + i * cell), cell, cell, **look))
            if mine and held is not None:
                row, column = i - rank * part * (placed == "S(0)"), j - rank * part * (placed == "S(1)")
                middle = x + (j + 0.5) * cell, y + (i + 0.5) * cell
                size = {"fontsize": style.SMALL - 1.5, "color": style.INK}
                ax.text(*middle, f"{held[row][column]:.3g}", ha="center", va="center", **size)


def _one(report: Any, start: str, end: str) -> Figure:
    holds = table(report, "holds", ["start", "end", "rank", "before", "after"])
    moves = table(report, "redistribute", ["start", "end", "forward", "backward", "bytes"])
    move = moves[(moves["start"] == start) & (moves["end"] == end)].iloc[0]
    mine = holds[(holds["start"] == start) & (holds["end"] == end)].set_index("rank")
    if mine.empty:
        raise ValueError(f"{WORDS[start]} to {WORDS[end]} was refused: {move['why']}")
    ranks = len(mine)
    side = int(report.provenance.get("side", 4))
    wide, high = 2 * side * CELL + 0.62, side * CELL + 0.3

    def draw(ax: Axes, x: float, y: float, width: float, height: float, rank: int) -> None:
        grid = side * CELL
        right = x + grid + 0.62
        for left, placed, name in ((x, start, "before"), (right, end, "after")):
            look = {"va": "center", "fontsize": style.SMALL, "color": style.QUIET}
            ax.text(left, y + 0.1, f"{name}: {WORDS[placed]}", **look)
            tile(ax, left, y + 0.24, CELL, side, rank, ranks, placed, mine.loc[rank, name])
        middle = y + 0.24 + grid / 2
        look = {"arrowstyle": "-|>", "mutation_scale": 12, "color": style.INK}
        ax.add_patch(FancyArrowPatch((x + grid + 0.12, middle), (right - 0.12, middle), **look))

    cost = words(move["forward"])
    return mesh_grid(
        [list(range(ranks))], ("", "ranks"), inside=(wide, high, draw),
        holds={rank: () for rank in range(ranks)},
        title=f"{WORDS[start]} to {WORDS[end]}: {cost} forward, {words(move['backward'])} backward",
        subtitle="The numbers that a rank holds, in their places in the whole matrix. Orange: a summand.",
        label=report.label,
    )  # fmt: skip


@styled
def _moves(report: Any) -> Figure:
    moves = table(report, "redistribute", ["start", "end", "forward", "backward"])
    return _cells(
        report, moves.rename(columns={"start": "row", "end": "column"}),
        "from", "to", lambda r: (r["forward"], f"back: {words(r['backward'])}" if r["forward"] != "refused" else ""),
        "What a redistribution costs, forward and back",
    )  # fmt: skip


@styled
def _matmul(report: Any) -> Figure:
    found = table(report, "matmul", ["x", "w", "y", "forward", "backward"])
    free = int((found["forward"] == "-").sum())
    return _cells(
        report, found.rename(columns={"x": "row", "w": "column"}),
        "x", "w", lambda r: (r["forward"], f"x @ w is {r['y']}; back: {words(r['backward'])}"),
        f"x @ w: {free} of {len(found)} pairs of placements need no collective for the product itself",
    )  # fmt: skip


def _cells(report: Any, found: pd.DataFrame, rows: str, columns: str, said: Any, title: str) -> Figure:
    names = list(WORDS)
    sheet = Sheet()
    sheet.title(
        title,
        f"Rows: the placement of {rows}; columns: of {columns}. Bold: collectives that CommDebugMode counts.",
    )
    cells = []
    for row in found.to_dict("records"):
        main, below = said(row)
        place = names.index(row["row"]), names.index(row["column"])
        cells.append(Cell(*place, COLOURS.get(main, "#D6ECF8"), words(main), below, bold=main not in COLOURS))
        sheet.say(f"{row['row']}, {row['column']}: {words(main)}{', ' if below else ''}{below}")
    shown = [WORDS[name] for name in names]
    matrix(sheet, shown, shown, cells, height=0.52, size=style.NORMAL, label="cells")
    return sheet.finish(report.label)


@styled
def _flow(report: Any, start: str, end: str) -> Figure:
    found = table(report, "matmul", ["x", "w", "y", "forward", "to_whole", "backward", "gradients"])
    row = found[(found["x"] == start) & (found["w"] == end)].iloc[0]
    settings = report.provenance
    ranks, side, cell = int(settings.get("world_size", 2)), int(settings.get("side", 4)), 0.2
    grid = side * cell
    sheet = Sheet()
    sheet.title(
        f"{WORDS[start]} @ {WORDS[end]} is {WORDS[row['y']]}: {words(row['forward'])} for the product, "
        f"{words(row['to_whole'])} to make it whole",
        "Filled: what a rank holds of each matrix. Orange and hatched: a summand of the whole.",
    )
    height = 0.3 + ranks * (grid + 0.22)
    ax = sheet.axes(0, sheet.width, height)
    ax.set(xlim=(0, sheet.width), ylim=(height, 0))
    ax.set_axis_off()
    ax.set_label("flow")
    places = [(1.0, start, f"x: {WORDS[start]}"), (2.9, end, f"w: {WORDS[end]}"),
              (5.2, row["y"], f"x @ w: {WORDS[row['y']]}"), (8.2, "R", "whole: Replicate")]  # fmt: skip
    for x, _, name in places:
        ax.text(x, 0.12, name, va="center", fontsize=style.NORMAL)
    for rank in range(ranks):
        y = 0.3 + rank * (grid + 0.22)
        ax.text(0.15, y + grid / 2, f"rank {rank}", va="center", fontweight="bold")
        for x, placed, _ in places:
            tile(ax, x, y, cell, side, rank, ranks, placed)
        ax.text((1.0 + grid + 2.9) / 2, y + grid / 2, "@", ha="center", va="center", fontsize=style.TITLE)
    middle = 0.3 + (ranks * (grid + 0.22) - 0.22) / 2
    for x0, x1, text in ((2.9 + grid, 5.2, row["forward"]), (5.2 + grid, 8.2, row["to_whole"])):
        none = text == "-"
        look = {"color": style.QUIET if none else "#D55E00", "linewidth": 1.0 if none else 2.2}
        ends = (x0 + 0.1, middle), (x1 - 0.1, middle)
        ax.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=14, **look))
        ax.text((x0 + x1) / 2, middle - 0.12, words(text), ha="center", va="bottom", fontsize=style.SMALL,
                fontweight="normal" if none else "bold")  # fmt: skip
    gradients = dict(zip("xw", row["gradients"].split(" "), strict=True))
    sheet.text(
        f"Backward: {words(row['backward'])}; the gradient of x is {WORDS[gradients['x']]}, "
        f"that of w {WORDS[gradients['w']]}."
    )
    sheet.say(f"Backward: {words(row['backward'])}, gradients {row['gradients']}")
    return sheet.finish(report.label)

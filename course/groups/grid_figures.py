"""A grid of ranks drawn: who stands where, who is in whose group, who sends how much to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from labkit.views import style
from labkit.views.style import Figure, Sheet, styled

__all__ = ["mesh_grid"]

# Okabe-Ito; groups are told apart by their letter and their outline as well
GROUP_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#5F6B6D")
OUTLINES = ("-", "--", ":", "-.")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HEAD = 0.3  # inches: a box's head
GAP_X, GAP_Y = 1.3, 0.85
LEFT, ABOVE = 1.0, 0.36
MINOR = 0.05  # arrows with less than this share of the largest are notices, not data


@styled
def mesh_grid(
    ranks: Sequence[Sequence[int]],
    names: Sequence[str] = ("axis 0", "axis 1"),
    *,
    groups: Sequence[Sequence[int]] = (),
    sends: Mapping[tuple[int, int], float] | None = None,
    title: str = "",
    label: str = "",
) -> Figure:
    """Draw a mesh of ranks, one box a rank, rows along the first axis and columns along the second.

    groups: ranks that share a colour, an outline and a letter. sends: bytes by (source, target), drawn as arrows.
    Raises ValueError for a grid with rows of different lengths, ranks that stand twice, and groups or arrows of ranks
    that are not in it.

    >>> print(mesh_grid([[0, 1], [2, 3]], ("dp", "tp"), groups=[[0, 2], [1, 3]], title="Axis dp").summary)
    Axis dp. 2 by 2 ranks: 0 at (0, 0), 1 at (0, 1), 2 at (1, 0), 3 at (1, 1). Groups: A [0, 2], B [1, 3].
    """
    sends = dict(sends or {})
    places = _places(ranks, groups, sends)
    sheet = Sheet()
    if title:
        sheet.title(title)
    rows, columns = len(ranks), len(ranks[0])
    room = (sheet.width - LEFT - 0.3 - GAP_X * (columns - 1)) / columns
    width, height = min(room, 1.92), HEAD + 0.14
    left = LEFT + max(0.0, (sheet.width - LEFT - 0.3 - columns * width - (columns - 1) * GAP_X) / 2)
    boxes = {
        rank: (left + column * (width + GAP_X), ABOVE + row * (height + GAP_Y))
        for rank, (row, column) in places.items()
    }
    total = ABOVE + rows * height + (rows - 1) * GAP_Y + 0.1
    ax = sheet.axes(0, sheet.width, total)
    ax.set(xlim=(0, sheet.width), ylim=(total, 0))
    ax.set_axis_off()
    ax.set_label("mesh")
    _axes(ax, boxes, width, height, ranks, names)
    letters = {rank: i for i, group in enumerate(groups) for rank in group}
    for rank, (x, y) in boxes.items():
        _box(ax, x, y, width, height, rank, places[rank], letters.get(rank))
    _arrows(ax, boxes, width, height, sends, letters)
    at = ", ".join(f"{rank} at ({row}, {column})" for rank, (row, column) in places.items())
    sheet.say(f"{rows} by {columns} ranks: {at}")
    if groups:
        sheet.say("Groups: " + ", ".join(f"{LETTERS[i]} {list(group)}" for i, group in enumerate(groups)))
    if sends:
        sheet.say("Sent: " + ", ".join(f"{a} to {b} {_bytes(n)}" for (a, b), n in sends.items()))
    small = any(_minor(n, sends) for n in sends.values())
    note = "Arrows: bytes sent over the sockets between ranks, headers included." if sends else ""
    return sheet.finish(label, note + (" Thin: notices without data." if small else ""))


def _places(
    ranks: Sequence[Sequence[int]], groups: Sequence[Sequence[int]], sends: Mapping[tuple[int, int], float]
) -> dict[int, tuple[int, int]]:
    if not ranks or not ranks[0] or len({len(row) for row in ranks}) != 1:
        raise ValueError(f"a mesh to draw has rows of one length, got {[list(row) for row in ranks]}")
    flat = [int(rank) for row in ranks for rank in row]
    if len(set(flat)) != len(flat):
        raise ValueError(f"a rank stands once in a mesh, got {flat}")
    known = set(flat)
    named = {r for group in groups for r in group} | {r for pair in sends for r in pair}
    if named - known:
        raise ValueError(f"ranks {sorted(named - known)} are not in the mesh of {flat}")
    return {int(rank): (i, j) for i, row in enumerate(ranks) for j, rank in enumerate(row)}


def _axes(ax: Axes, boxes: Any, width: float, height: float, ranks: Any, names: Sequence[str]) -> None:
    """The names of the axes: the first runs down, the second to the right."""
    first, last = boxes[int(ranks[0][0])], boxes[int(ranks[-1][-1])]
    look = {"arrowstyle": "-|>", "mutation_scale": 10, "color": style.QUIET, "linewidth": 1.0}
    if len(ranks[0]) > 1:
        y = first[1] - 0.16
        ax.add_patch(FancyArrowPatch((first[0], y), (last[0] + width, y), **look))
        middle = (first[0] + last[0] + width) / 2
        _name(ax, middle, y, names[-1], 0)
    if len(ranks) > 1:
        x = first[0] - 0.25
        ax.add_patch(FancyArrowPatch((x, first[1]), (x, last[1] + height), **look))
        _name(ax, x, (first[1] + last[1] + height) / 2, names[0], 90)


def _name(ax: Axes, x: float, y: float, text: str, turned: float) -> None:
    behind = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"}
    ax.text(x, y, text, ha="center", va="center", rotation=turned, fontsize=style.NORMAL, bbox=behind)


def _box(
    ax: Axes, x: float, y: float, width: float, height: float, rank: int, place: Any, group: int | None
) -> None:
    colour = style.QUIET if group is None else GROUP_COLOURS[group % len(GROUP_COLOURS)]
    outline = "-" if group is None else OUTLINES[group % len(OUTLINES)]
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", facecolor="white"
    )
    shape.set(edgecolor=colour, linewidth=2.0, linestyle=outline, gid=f"rank {rank}")
    ax.add_patch(shape)
    head = f"rank {rank}   ({place[0]}, {place[1]})"
    ax.text(x + 0.15, y + HEAD / 2 + 0.02, head, va="center", fontweight="bold", fontsize=style.NORMAL)
    if group is not None:
        ax.text(
            x + width - 0.12, y + HEAD / 2 + 0.02, LETTERS[group % 26], ha="right", va="center",
            color=style.INK, fontweight="bold", fontsize=style.NORMAL,
        )  # fmt: skip


def _arrows(ax: Axes, boxes: Any, width: float, height: float, sends: Any, letters: Any) -> None:
    for (source, target), count in sends.items():
        (x0, y0), (x1, y1) = boxes[source], boxes[target]
        start, end, side = _ends(x0, y0, x1, y1, width, height)
        group = letters.get(source)
        colour = style.INK if group is None else GROUP_COLOURS[group % len(GROUP_COLOURS)]
        minor = _minor(count, sends)
        arrow = FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=7 if minor else 14, shrinkA=0, shrinkB=0,
            color="#999999" if minor else colour, linewidth=0.7 if minor else 2.2,
            linestyle=":" if minor else "-",
        )  # fmt: skip
        arrow.set_gid(f"sends {source} {target}")
        ax.add_patch(arrow)
        if minor:
            continue
        share = 0.5 if side != "slant" else 0.3  # slanted arrows cross in the middle
        x, y = start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
        behind = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        where = {"across": ("center", "bottom" if x1 > x0 else "top", 0, -0.04 if x1 > x0 else 0.04),
                 "down": ("right" if y1 < y0 else "left", "center", -0.07 if y1 < y0 else 0.07, 0)}  # fmt: skip
        ha, va, dx, dy = where.get(side, ("center", "center", 0, 0))
        ax.text(
            x + dx, y + dy, _bytes(count), ha=ha, va=va, fontsize=style.SMALL, color=style.INK,
            bbox=behind if side == "slant" else None,
        )  # fmt: skip


def _ends(
    x0: float, y0: float, x1: float, y1: float, width: float, height: float
) -> tuple[tuple[float, float], tuple[float, float], str]:
    """Where an arrow begins and ends: at the sides that face each other, there and back beside each other."""
    off = 0.14
    if y0 == y1:
        on = y0 + height / 2 + (-off if x1 > x0 else off)
        return ((x0 + width, on), (x1, on), "across") if x1 > x0 else ((x0, on), (x1 + width, on), "across")
    if x0 == x1:
        at = x0 + width / 2 + (off if y1 > y0 else -off)
        return ((at, y0 + height), (at, y1), "down") if y1 > y0 else ((at, y0), (at, y1 + height), "down")
    right, down = x1 > x0, y1 > y0
    lift = 0.0 if down else off  # there and back do not lie on each other
    start = (x0 + (width - lift if right else lift), y0 + (height if down else 0.0))
    end = (x1 + (lift if right else width - lift), y1 + (0.0 if down else height))
    return start, end, "slant"


def _minor(count: float, sends: Mapping[Any, float]) -> bool:
    return count < MINOR * max(sends.values())


def _bytes(count: float) -> str:
    """A number of bytes in words.

    >>> _bytes(576), _bytes(16960)
    ('576 B', '16.6 KiB')
    """
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} B"

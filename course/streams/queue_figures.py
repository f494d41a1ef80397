"""A stream program as queues: a row for each stream, a box for each thing in it, marks where events are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from course.shared.streams import ops
from course.shared.streams.program import Program
from course.shared.streams.simulator import Simulation
from labkit.views import style
from labkit.views.style import Figure, Sheet, ink_on, styled

__all__ = ["queues"]

LEFT, ROW, BOX = 1.15, 0.42, 0.3  # inches
HOST = "host"
RECORD, WAIT, RACE = "#E69F00", "#56B4E9", "#B00020"
MARKS = ("record", "wait", "nothing")
WIDE, NARROW = 1.35, 0.95  # of a kernel and of a mark, in slots
SLOT = 0.95  # inches at most


@dataclass
class _Box:
    index: int
    row: str
    text: str
    kind: str  # 'compute', 'collective', 'copy', 'record', 'wait', 'nothing' (a wait that takes nothing) or 'host'
    after: int | None = None  # the op whose mark it waits for
    left: float = 0.0
    width: float = WIDE


@styled
def queues(found: Program | Mapping[str, Program], *, title: str | None = None) -> Figure:
    """Draw what stands in the queue of each stream, in the order in which the host put it there.

    A record is a mark in its queue; an arrow goes from the mark to the wait that took it. A wait without effect has
    a dashed frame. What the host does to memory stands in a row of its own where memory changes hands. The two ops of a
    race are joined by a dashed line, and the heading names the mistake.

    Args:
        found: one program, or several by name.
        title: of the figure.

    >>> program = Program("hand over", streams="side")
    >>> program.kernel("produce", 4, writes="x")
    >>> program.kernel("consume", 2, on="side", reads="x")
    >>> queues(program).summary
    'hand over: 1 race (missing wait). [simulated]'
    """
    programs = {found.name: found} if isinstance(found, Program) else dict(found)
    sheet = Sheet()
    if title:
        sheet.title(title)
    read = {name: _read(program) for name, program in programs.items()}
    for name, (boxes, races) in read.items():
        causes = ", ".join(dict.fromkeys(race.cause for race in races))
        said = (
            f"{name}: {len(races)} race{'s' * (len(races) > 1)} ({causes})" if races else f"{name}: no race"
        )
        sheet.text(said, fontweight="bold", color=RACE if races else style.INK)
        sheet.say(said)
        _panel(sheet, programs[name], boxes, races)
    sheet.text("Left to right: the order in which the host issues. Boxes have no length in time.",
               fontsize=style.SMALL, color=style.QUIET)  # fmt: skip
    kinds = {box.kind for boxes, _ in read.values() for box in boxes}
    keys = {
        "record": ("record: a mark", _key(RECORD)),
        "wait": ("wait: takes the mark that the arrow comes from", _key(WAIT)),
        "nothing": ("wait without effect", _key(RACE)),
        "host": ("the host, and what it does to memory", _key(style.QUIET)),
    }
    race = [("race", _race_key)] if any(races for _, races in read.values()) else []
    sheet.legend([key for kind, key in keys.items() if kind in kinds] + race)
    return sheet.finish("simulated")


def _read(program: Program) -> tuple[list[_Box], tuple[Any, ...]]:
    """The boxes of a program, left to right, and its races."""
    done, shared = Simulation(program), _on_two_streams(program)
    again = done.memory.again.items()
    handed = {alloc: free for alloc, free in again if program.ops[free].buffer in shared}  # type: ignore[attr-defined]
    kept = {op.buffer for op in program if isinstance(op, ops.RecordStream)}
    tails: dict[str, int] = {}
    boxes: list[_Box] = []

    def box(row: str, text: str, kind: str, after: int | None = None) -> None:
        boxes.append(_Box(index, row, text, kind, after, width=NARROW if kind in MARKS else WIDE))
        tails[row] = index

    for index, op in enumerate(program):
        if isinstance(op, ops.Kernel):
            box(op.stream, op.name, op.kind)
        elif isinstance(op, ops.Record):
            box(op.stream, f"record\n{op.event}", "record")
        elif isinstance(op, ops.Wait):
            after = done.captured[index]
            box(op.stream, f"wait\n{op.event}", "nothing" if after is None else "wait", after)
        elif isinstance(op, ops.WaitStream):
            box(op.stream, f"wait for\n{op.other}", "wait", tails.get(op.other))
        elif isinstance(op, ops.Synchronize):
            box(HOST, f"synchronize\n{op.name or op.what}", "host", tails.get(op.name))
        elif isinstance(op, ops.RecordStream):
            box(HOST, f"record_stream\n{op.buffer}, {op.stream}", "host")
        elif isinstance(op, ops.Free) and (index in handed.values() or op.buffer in kept):
            box(HOST, f"free\n{op.buffer}", "host")
        elif isinstance(op, ops.Alloc) and index in handed:
            box(HOST, f"{op.buffer} gets\nit again", "host")
    return boxes, done.races()


def _on_two_streams(program: Program) -> set[str]:
    """The buffers that another stream than their owner uses."""
    owner = {op.buffer: op.stream for op in program if isinstance(op, ops.Alloc)}
    kernels = [op for op in program if isinstance(op, ops.Kernel)]
    return {b for op in kernels for b in (*op.reads, *op.writes) if op.stream != owner.get(b, op.stream)}


def _panel(sheet: Sheet, program: Program, boxes: list[_Box], races: tuple[Any, ...]) -> None:
    used = {box.row for box in boxes}
    rows = [row for row in (HOST, *program.streams) if row in used]
    at = 0.0
    for box in boxes:
        box.left = at
        at += box.width
    room = sheet.width - LEFT - 0.2
    slots = max(at, room / SLOT)
    ax = sheet.axes(LEFT, room, ROW * len(rows))
    sheet.top += 0.14
    ax.set(xlim=(0, slots), ylim=(len(rows), 0), xticks=[], yticks=[])
    ax.set_label(f"queues {program.name}")
    for spine in ax.spines.values():
        spine.set_visible(False)
    middle = {row: i + 0.5 for i, row in enumerate(rows)}
    for row in rows:
        ax.plot([0, max(at, 1)], [middle[row]] * 2, color=style.FAINT, linewidth=5, zorder=0)
        ax.annotate(
            style.cut(row, LEFT - 0.2), (0, middle[row]), xytext=(-7, 0), textcoords="offset points", ha="right",
            va="center", fontsize=style.NORMAL,
        )  # fmt: skip
    inch = room / slots
    for box in boxes:
        _draw(ax, box, middle[box.row], inch)
    where = {box.index: box for box in boxes}
    for box in boxes:
        if box.after in where:
            _arrow(ax, where[box.after], box, middle)  # type: ignore[index]
    for race in races:
        one, other = where.get(race.first), where.get(race.second)
        if one and other:
            _race(ax, one, other, middle)


def _draw(ax: Axes, box: _Box, y: float, inch: float) -> None:
    high = BOX / ROW
    colour = style.STREAM_KINDS[box.kind][0] if box.kind in ops.KINDS else "white"
    edge = {"record": RECORD, "wait": WAIT, "nothing": RACE, "host": style.QUIET}.get(box.kind, colour)
    ax.add_patch(
        FancyBboxPatch(
            (box.left + 0.07, y - high / 2), box.width - 0.14, high, boxstyle="square,pad=0", facecolor=colour,
            edgecolor=edge, linewidth=1.6, linestyle="--" if box.kind == "nothing" else "-",
        )
    )  # fmt: skip
    ink = style.INK if colour == "white" else ink_on(colour)
    text = "\n".join(style.cut(line, (box.width - 0.16) * inch, 7.5) for line in box.text.split("\n"))
    ax.text(
        box.left + box.width / 2, y, text, ha="center", va="center_baseline", fontsize=7.5, color=ink, linespacing=1.0
    )  # fmt: skip


def _arrow(ax: Axes, one: _Box, other: _Box, middle: Mapping[str, float]) -> None:
    if one.row == other.row:
        return
    down = middle[other.row] > middle[one.row]
    half = BOX / ROW / 2 * (1 if down else -1)
    start = (one.left + one.width * (0.5 if one.kind == "record" else 0.93), middle[one.row] + half)
    end = (other.left + other.width / 2, middle[other.row] - half)
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            color=style.INK,
            linewidth=1.2,
            shrinkA=0,
            shrinkB=0,
        )
    )


def _race(ax: Axes, one: _Box, other: _Box, middle: Mapping[str, float]) -> None:
    down = middle[other.row] > middle[one.row]
    half = BOX / ROW / 2 * (1 if down else -1)
    start = (one.left + one.width * 0.6, middle[one.row] + half)
    end = (other.left + other.width * 0.35, middle[other.row] - half)
    ax.plot(*zip(start, end, strict=True), color=RACE, linewidth=1.8, linestyle=(0, (2, 1.2)), zorder=6)


def _key(colour: str) -> Any:
    def draw(ax: Axes, x: float, y: float) -> None:
        line = "--" if colour == RACE else "-"
        ax.plot(
            [x, x + 0.18, x + 0.18, x, x], [y, y, y + 0.12, y + 0.12, y], line, color=colour, linewidth=1.5
        )

    return draw


def _race_key(ax: Axes, x: float, y: float) -> None:
    ax.plot([x, x + 0.2], [y + 0.06, y + 0.06], color=RACE, linewidth=1.8, linestyle=(0, (2, 1.2)))

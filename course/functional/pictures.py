"""What lesson 02 draws: graphs with their edges, and tables in the colours of what they found."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from labkit.study import pictures
from labkit.views import style
from labkit.views.style import Figure, Sheet, styled

__all__ = ["compiled", "edges", "gradients", "grid", "matrix", "results", "word"]

GOOD, BAD, STOPPED = "#A1D99B", "#F4796B", "#FDB874"  # under black text
COLOURS = {
    **dict.fromkeys(("one graph", "right", "the sum + 1"), GOOD),
    **dict.fromkeys(("wrong", "no gradient", "each rank its own", "n times", "1/n", "other"), BAD),
    **dict.fromkeys(("breaks", "raises", "by timing"), STOPPED),
}
SHEET, WIDE, HIGH, PITCH = 7.2, 1.75, 0.27, 0.4  # inches: the figure, a box, and from box to box
HEAD = 0.5  # inches: the name of a graph, in at most two lines
LEFT = "text-align:left;padding:3px 10px 3px 6px;vertical-align:top"


@styled
def edges(
    graphs: Mapping[str, Sequence[tuple[str, Sequence[str]]]], dropped: Sequence[Sequence[str]] = ()
) -> Figure:
    """Draw small graphs side by side: a box for each node in its order, and a line for each edge.

    Args:
        graphs: By name, each node with the nodes whose values it takes.
        dropped: For each graph, names of nodes that a pass removed: they are drawn dashed below it.
    """
    sheet = Sheet(SHEET)
    gone = [*dropped, *[()] * (len(graphs) - len(dropped))]
    say = "A line leads to each node that takes the value." + " Dashed: dropped by the pass." * any(gone)
    sheet.title("Nodes in the order in which they run", say)
    wide = (sheet.width - 0.3) / max(len(graphs), 2)
    rows = max((len(nodes) + len(out) for nodes, out in zip(graphs.values(), gone, strict=True)), default=1)
    ax = sheet.axes(0.15, sheet.width - 0.3, rows * PITCH + HEAD)
    ax.set(xlim=(0, sheet.width - 0.3), ylim=(rows * PITCH + HEAD, 0))
    ax.set_axis_off()
    for i, ((name, nodes), out) in enumerate(zip(graphs.items(), gone, strict=True)):
        for k, line in enumerate(style.wrap(name, wide - 0.15, style.NORMAL, "bold")[:2]):
            ax.text(i * wide, 0.1 + 0.17 * k, line, fontsize=style.NORMAL, fontweight="bold", va="center")
        _graph(ax, i * wide + 0.03, nodes, out)
        said = "; ".join(f"{node} takes {' and '.join(taken) or 'nothing'}" for node, taken in nodes)
        sheet.say(f"{name}: {said}" + (f"; dropped: {', '.join(out)}" if out else ""))
    return sheet.finish()


def _graph(ax: Axes, left: float, nodes: Sequence[tuple[str, Sequence[str]]], out: Sequence[str]) -> None:
    at = {name: HEAD - 0.04 + i * PITCH for i, (name, _) in enumerate(nodes)}
    line = {"color": style.QUIET, "linewidth": 1.2}
    lanes = 0
    for name, taken in nodes:
        for source in taken:
            begin, end = at[source] + HIGH, at[name]
            if end - at[source] < PITCH * 1.5:
                ax.annotate("", (left + 0.5, end), (left + 0.5, begin), arrowprops={**_arrow(), **line})
                continue
            x, lanes = left + WIDE + 0.14 + 0.13 * lanes, lanes + 1
            ax.plot([left + WIDE, x, x], [begin - HIGH / 2, begin - HIGH / 2, end + HIGH / 2], **line)
            ax.annotate(
                "", (left + WIDE, end + HIGH / 2), (x, end + HIGH / 2), arrowprops={**_arrow(), **line}
            )
    for name, y in at.items():
        _box(ax, left, y, name)
    for i, name in enumerate(out):
        _box(ax, left, HEAD - 0.04 + (len(nodes) + i) * PITCH, name, gone=True)


def _arrow() -> dict[str, Any]:
    return {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}


def _box(ax: Axes, left: float, y: float, name: str, gone: bool = False) -> None:
    moves = any(word in name for word in ("all_", "reduce", "broadcast", "sum_in_place"))
    fill = "#FFFFFF" if gone else "#FBE3D6" if moves else "#E4F3FC" if "wait" in name else "#F2F2F2"
    edge = "#D55E00" if moves else "#56B4E9" if "wait" in name else "#999999"
    box = FancyBboxPatch(
        (left, y), WIDE, HIGH, boxstyle="round,pad=0,rounding_size=0.05", facecolor=fill, edgecolor=edge,
        linewidth=1.4, linestyle="--" if gone else "-", zorder=3,
    )  # fmt: skip
    ax.add_patch(box)
    ax.text(left + 0.08, y + HIGH / 2, style.cut(name, WIDE - 0.12, style.SMALL), va="center", zorder=4,
            fontsize=style.SMALL, color=style.QUIET if gone else style.INK)  # fmt: skip


def results(tries: Sequence[Any]) -> str:
    """The graph of each try and what both ranks return; a result has `ranks` (edges, dropped, returns), `word`."""
    names = {_short(one): one.result for one in tries}
    drawn = {name: found["ranks"][0]["edges"] for name, found in names.items()}
    figure = edges(drawn, [found["ranks"][0]["dropped"] for found in names.values()])
    rows = [
        (name, *(_numbers(one["returns"]) for one in found["ranks"].values()), found["word"])
        for name, found in names.items()
    ]
    return pictures.as_html(figure) + grid(["", "rank 0 returns", "rank 1 returns", ""], rows)


def _short(one: Any) -> str:
    """The values of a try without their names, which its controls have."""
    return " · ".join(map(str, one.values.values()))


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def grid(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; a word that says how something ended has its colour. A pair is a word, and what a click on it shows.

    >>> grid(["", "ends"], [("a", ("breaks", "why"))]).count("<details>")
    1
    """
    lines = "".join(f'<th style="{LEFT}">{html.escape(head)}</th>' for head in heads)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><tr>{lines}</tr>{body}</table>"


def _cell(value: Any) -> str:
    word, more = value if isinstance(value, tuple) else (value, "")
    colour = COLOURS.get(word, "")
    look = f"{LEFT};background-color:{colour};color:#111111" if colour else LEFT
    word = html.escape(str(word))
    if more:
        look_of_text = "white-space:pre-wrap;max-width:22em;color:inherit;background:none"
        text = f'<pre style="{look_of_text}">{html.escape(more)}</pre>'
        word = f"<details><summary>{word}</summary>{text}</details>"
    return f'<td style="{look}">{word}</td>'


def matrix(found: Mapping[str, Mapping[str, tuple[str, str]]]) -> str:
    """A row for each collective, a column for each form and mode; a click on a cell shows the reason or the numbers."""
    columns = [*dict.fromkeys(name for of in found.values() for name in of)]
    rows = [(name, *(of.get(column, "-") for column in columns)) for name, of in found.items()]
    return grid(["", *columns], rows)


def compiled(tries: Sequence[Any]) -> str:
    """Of each try why it breaks, or its edges and Inductor's calls; each result is what `inside.look` returns."""
    drawn = {_short(one): one.result["edges"] for one in tries if one.result["edges"]}
    blocks = [pictures.as_html(edges(drawn))] if drawn else []
    for one in reversed(tries):
        text = one.result["why"] or "\n".join(one.result["calls"])
        blocks.append(grid(["", ""], [(_short(one), word(one.result))]))
        blocks.append(f'<pre style="white-space:pre-wrap">{html.escape(text)}</pre>' if text else "")
    return "".join(blocks)


def word(seen: Mapping[str, Any]) -> str:
    """How a compile ended, of what `inside.look` returned."""
    return "breaks" if seen["why"] else "one graph" if seen["edges"] else "no such form"


def gradients(tries: Sequence[Any]) -> str:
    """Each weight's gradient over one process's, a row for each try; each result is {weight: words}."""
    weights = [*dict.fromkeys(name for one in tries for name in one.result)]
    rows = [(_short(one), *(one.result.get(name, "") for name in weights)) for one in tries]
    return grid(["", *weights], rows)

"""What the benches of lesson 00 draw: who waits, who owns what, where graphs end, and who reduced which piece."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import pandas as pd
from oddrank.source import annotate

from course.shared.colour_key import colour_key
from course.shared.timelines import ENDS, NOTES, timelines
from labkit.views.style import Figure

__all__ = ["owners", "pieces", "sources", "waits"]

OWNERS = (
    "#9ECAE1",
    "#FDB874",
    "#A1D99B",
    "#CBB8E0",
)  # of ranks, under black text, on a light page and on a dark one
PLAIN, WRONG = "#D9D9D9", "#F4796B"
SUM = 30.0  # of 10 and 20


def waits(tries: Sequence[Any], label: str) -> Figure:
    """Each rank's delay, and its all_reduce, newest on top; each result is {rank: (began, called, ended)}."""
    notes, ends = [], []
    for one in reversed(tries):
        start = min(began for began, _, _ in one.result.values())
        for rank, times in one.result.items():
            began, called, ended = (at - start for at in times)
            notes.append((one.name, rank, "python", "delay", began, called))
            notes.append((one.name, rank, "wait", "all_reduce", called, ended))
            ends.append((one.name, rank, ended, f"{ended - called:.3f} s in all_reduce"))
    frames = pd.DataFrame(notes, columns=NOTES), pd.DataFrame(ends, columns=ENDS)
    return timelines(*frames, label=label, title="When each rank calls all_reduce, and has the sum")


def owners(tries: Sequence[Any]) -> str:
    """X, W and the partial sums in the colours of the ranks, the newest try first; each result is one dict a rank.

    The keys: 'x' and 'w', this rank's parts; 'adds', 'returns'; 'one process'.
    """
    rows = []
    for one in reversed(tries):
        found = list(one.result.values())
        owner = [rank for rank, part in enumerate(found) for _ in part["w"]]
        right = found[0]["one process"]
        returns = [part["returns"][0] for part in found]
        rows.append(
            [
                f"{len(found)} ranks, relu {html.escape(one.values['relu'])}",
                _grid([sum((part["x"][0] for part in found), [])], [[OWNERS[rank] for rank in owner]]),
                _grid(sum((part["w"] for part in found), []), [[OWNERS[rank]] * 2 for rank in owner]),
                _grid([part["adds"][0] for part in found], [[colour] * 2 for colour in OWNERS]),
                _grid(
                    returns,
                    [
                        [PLAIN if a == b else WRONG for a, b in zip(row, *right, strict=True)]
                        for row in returns
                    ],
                ),
                _grid(right, [[PLAIN] * 2]),
            ]
        )
    most = max(len(one.result) for one in tries)
    key = {f"rank {rank}": OWNERS[rank] for rank in range(most)} | {"not as one process": WRONG}
    heads = ["", "X", "W", "each rank adds", "each rank returns", "one process"]
    return _table(heads, rows) + colour_key(key)


def sources(tries: Sequence[Any]) -> str:
    """The annotated source of each try, the newest first; each result is a record a rank."""
    return "".join(f"<div>{annotate(one.result)._repr_html_()}</div>" for one in reversed(tries))


def pieces(tries: Sequence[Any]) -> str:
    """What each rank holds after the call, the newest first; each result is {rank: values}, or the text of an error."""
    blocks = []
    for one in reversed(tries):
        if isinstance(one.result, str):
            shown = f'<pre style="white-space:pre-wrap">{html.escape(one.result)}</pre>'
        else:
            ranks = list(one.result.values())
            colours = [[OWNERS[value != SUM] for value in row] for row in ranks]
            shown = _grid(ranks, colours, "rank {}: ")
        blocks.append(f"<p><b>{html.escape(one.name)}</b></p>{shown}")
    return "".join(blocks) + colour_key({"the sum": OWNERS[0], "not the sum": OWNERS[1]})


def _grid(rows: Sequence[Sequence[float]], colours: Sequence[Sequence[str]], head: str = "") -> str:
    """Numbers in cells with a colour each; `head` names each row."""
    lines = []
    for i, (row, mine) in enumerate(zip(rows, colours, strict=False)):
        cells = "".join(
            f'<td style="background-color:{colour};color:#111111;text-align:right">{value:g}</td>'
            for value, colour in zip(row, mine, strict=True)
        )
        lines.append(f"<tr>{f'<td>{head.format(i)}</td>' if head else ''}{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    left = ' style="text-align:left"'
    lines = ["".join(f"<th{left}>{head}</th>" for head in heads)]
    lines += ["".join(f"<td{left}>{cell}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"

"""The table of `oddrank look --perturb`, on the terminal and as a page that loads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from oddrank.look.outcomes import Outcome, verdict
from oddrank.page import document, escape

__all__ = ["html", "text"]

COMPARED = (
    "How the run ended; collectives of a recorded step by rank and operation; every graph of Dynamo, recompiles and"
    " breaks; parameters after the last recorded step and losses, where two runs without a difference agree in them. A"
    " batch that is shorter changes numbers by design: there, only what ranks should hold alike is compared."
)
MOST_LINES = 6  # of an error, on the terminal


def text(rows: Sequence[Outcome]) -> str:
    """Return rows as text: the difference, what it changed, and where ranks part."""
    lines = []
    for row in rows:
        lines.append(f"{row.name:21} {row.headline:17} {row.seconds:4.0f} s   {row.untried or row.said}")
        told = [line for why in row.why for line in why.splitlines() if line.strip()]
        lines += [f"    {line}" for line in told[:MOST_LINES]]
        if len(told) > MOST_LINES:
            lines.append(f"    ... {len(told) - MOST_LINES} lines more on the page")
        if row.parting and row.found:
            said = f"first decision apart: {row.parting}"
            lines += textwrap.wrap(said, 110, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def html(program: str, label: str, world: int, rank: int, rows: Sequence[Outcome], noise: str = "") -> str:
    """Return the page.

    Args:
        program: The command.
        label: What it ran on, such as 'gloo · cpu'.
        world: Number of ranks.
        rank: The rank that differed.
        rows: What each difference changed.
        noise: How far two runs without a difference are apart in numbers; '' where they are close.
    """
    said = verdict(rows, rank, noise)
    titles = ("difference", f"rank {rank} has", "outcome", "first decision apart", "seconds")
    parts = [
        f"<h1>{escape(program)}: one difference at a time</h1>",
        f"<p class='quiet'>{world} ranks · {escape(label)}. Each run has one difference, on rank {rank}, and is"
        " compared with the run that has none and warm caches.</p>",
        f"<p class='{'bad' if any(row.found for row in rows) else 'good'}'>{escape(said[:1].upper() + said[1:])}.</p>",
        f"<table><tr>{''.join(f'<th>{escape(title)}</th>' for title in titles)}</tr>{''.join(map(_row, rows))}</table>",
        *(_section(row) for row in rows if row.why or row.untried),
        "<h2>What was compared</h2>",
        f"<p class='quiet'>{COMPARED}</p>",
    ]
    return document(f"{program}: oddrank look --perturb", parts)


def _row(row: Outcome) -> str:
    address = f"{row.folder}/{'output.txt' if row.found[:1] == ['hang'] else 'index.html'}"
    cells = (row.said or "nothing else", row.headline, row.parting if row.found else "", f"{row.seconds:.0f}")
    told = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f"<tr><td><a href='{escape(address)}'>{escape(row.name)}</a></td>{told}</tr>"


def _section(row: Outcome) -> str:
    said = f"<p>{escape(row.untried)}</p>" if row.untried else ""
    told = "".join(f"<pre>{escape(why)}</pre>" for why in row.why)
    where = f"<p>First decision apart: {escape(row.parting)}.</p>" if row.parting else ""
    return f"<h2>{escape(row.name)}: {escape(row.headline)}</h2>{said}{where}{told}"

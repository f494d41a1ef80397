"""The table of `labkit look --perturb`, on the terminal and as a page that loads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from labkit.look.outcomes import Outcome
from labkit.page import document, escape

__all__ = ["html", "text"]

MOST_LINES = 6  # of an error, on the terminal


def text(rows: Sequence[Outcome]) -> str:
    """Return rows as text: the difference, what it changed, and where ranks part."""
    lines = []
    for row in rows:
        lines.append(f"{row.name:13} {row.headline:18} {row.seconds:4.0f} s   {row.untried or row.said}")
        told = [line for why in row.why for line in why.splitlines() if line.strip()]
        lines += [f"    {line}" for line in told[:MOST_LINES]]
        if len(told) > MOST_LINES:
            lines.append(f"    ... {len(told) - MOST_LINES} lines more on the page")
        lines += (
            textwrap.wrap(
                f"first decision apart: {row.parting}", 110, initial_indent="    ", subsequent_indent="    "
            )
            if row.parting and row.found
            else []
        )
    return "\n".join(lines)


def html(program: str, world: int, rank: int, rows: Sequence[Outcome]) -> str:
    """Return the page.

    Args:
        program: The command.
        world: Number of ranks.
        rank: The rank that differed.
        rows: What each difference changed.
    """
    changed = [row for row in rows if row.found]
    verdict = (
        f"{len(changed)} of {len(rows)} differences on rank {rank} change what ranks do:"
        f" {', '.join(row.name for row in changed)}."
        if changed
        else f"The same in what was compared, with each of {sum(not row.untried for row in rows)} differences on rank"
        f" {rank}: collectives, graphs, recompiles and numbers."
    )
    head = "<tr><th>difference</th><th>rank {rank} has</th><th>outcome</th><th>first decision apart</th><th class='n'>s</th></tr>"
    body = ""
    for row in rows:
        address = f"{row.folder}/index.html" if row.found != ["hang"] else f"{row.folder}/output.txt"
        body += (
            f"<tr><td><a href='{escape(address)}'>{escape(row.name)}</a></td><td>{escape(row.said or 'nothing else')}</td>"
            f"<td><b>{escape(row.headline)}</b></td><td>{escape(row.parting if row.found else '')}</td>"
            f"<td class='n'>{row.seconds:.0f}</td></tr>"
        )
    parts = [
        f"<h1>{escape(program)}: one difference at a time</h1>",
        f"<p class='quiet'>{world} ranks; each run has one difference, on rank {rank}, and is compared with the run that"
        " has none and warm caches.</p>",
        f"<p class='{'bad' if changed else 'good'}'>{escape(verdict)}</p>",
        f"<table>{head.replace('{rank}', str(rank))}{body}</table>",
        *(_section(row) for row in rows if row.why or row.untried),
        "<h2>What was compared</h2>",
        "<p class='quiet'>How the run ended; collectives of a recorded step by rank and operation; every graph of Dynamo,"
        " recompiles and breaks; parameters after the last recorded step and losses, where two runs without a"
        " difference agree in them. A batch that is shorter and another precision change numbers by design: there, only"
        " what ranks should hold alike is compared.</p>",
    ]
    return document(f"{program}: labkit look --perturb", parts)


def _section(row: Outcome) -> str:
    said = f"<p>{escape(row.untried)}</p>" if row.untried else ""
    told = "".join(f"<pre>{escape(why)}</pre>" for why in row.why)
    where = f"<p>First decision apart: {escape(row.parting)}.</p>" if row.parting else ""
    return f"<h2>{escape(row.name)}: {escape(row.headline)}</h2>{said}{where}{told}"

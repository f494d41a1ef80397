"""The fragment strip in words: its finding, and a line for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oddrank.strip.forwards import Forward, collectives, take_forward

__all__ = ["FOOTNOTE", "NOTHING", "described", "finding", "line", "part", "plural", "strip_text", "take"]

NOTHING = "nothing was recorded: no forward ran inside the record"
FOOTNOTE = "Drawn from a profile, which lengthens short steps: read counts and order here, not speed."


def strip_text(record: Any, forward: int | str = 0, ranks: Sequence[int] | None = None) -> str:
    """Describe in one line for each rank what `strip` draws.

    Args:
        record, forward, ranks: as for `strip`.

    Returns:
        The text.

    Raises:
        ValueError: as for `strip`.

    >>> import pandas as pd
    >>> columns = ["rank", "forward", "kind", "name", "start_us", "end_us", "compile"]
    >>> segments = pd.DataFrame([(0, 0, "compute", "aten::mm", 0.0, 600.0, "")], columns=columns)
    >>> ranges = segments.assign(kind="op", thread="main")
    >>> print(strip_text({"segments": segments[:0], "ranges": ranges}))
    nothing was recorded: no forward ran inside the record
    >>> print(strip_text({"segments": segments, "ranges": ranges}))
    rank 0: eager, no collective
    """
    run = take(record, forward, ranks)
    if run.empty:
        return NOTHING
    lines = [f"rank {rank}: {line(run, rank)}" for rank in run.ranks]
    if run.difference:
        lines.append(f"first difference between ranks, {part(run)}: {run.difference.text}")
    return "\n".join(lines)


def take(
    record: Any,
    number: int | str,
    ranks: Sequence[int] | None = None,
) -> Forward:
    """The forward itself, or the one that a record has under a number."""
    return record if isinstance(record, Forward) else take_forward(record, number, ranks)


def line(run: Forward, rank: int) -> str:
    """The counts of one rank in words."""
    n = run.counts.loc[rank]
    calls = plural(n.collectives, "collective")
    if not n.regions and not n.breaks:
        return f"eager, {calls}"
    return f"{plural(n.regions, 'region')}, {calls}, {plural(n.breaks, 'break')}"


def described(run: Forward) -> str:
    """The counts of a forward in one line: once where ranks agree, otherwise rank by rank."""
    if len(run.counts.drop_duplicates()) > 1:
        return "; ".join(f"rank {rank}: {line(run, rank)}" for rank in run.ranks)
    return ("every rank: " if len(run.ranks) > 1 else "") + line(run, run.ranks[0])


def plural(n: int, noun: str) -> str:
    """'1 region', '360 regions', 'no region'."""
    return f"{n or 'no'} {noun}{'s' if n > 1 else ''}"


def finding(run: Forward) -> str:
    """The finding of one strip, as its title."""
    if run.empty:
        return "Nothing was recorded"
    n = run.counts.max()
    if run.difference is not None:
        ranks = " and ".join(map(str, run.ranks)) if len(run.ranks) == 2 else f"{len(run.ranks)} ranks"
        return f"Ranks {ranks} part ways at {part(run)} of this {run.unit}"
    if not n.regions:
        return f"Eager: {plural(n.collectives, 'collective')} and no compiled region in one {run.unit}"
    regions = plural(n.regions, "compiled region")
    if not n.breaks:
        calls = collectives(run.segments)
        said = plural(n.collectives, "collective")
        if (calls["compile"] != "").all():
            return f"{regions} with {said} inside one {run.unit}, and no graph break"
        return f"One {run.unit} has {regions}, {said} and no graph break"
    at = f", {n.at_collective} of them at a collective" if n.get("at_collective", 0) else ""
    return f"One {run.unit} fell into {regions} at {plural(n.breaks, 'graph break')}{at}"


def part(run: Forward) -> str:
    """Where ranks part: a number in the list of what they did, which is no step of a training loop."""
    assert run.difference is not None
    return f"{'step' if run.unit == 'forward' else 'event'} {run.difference.index}"

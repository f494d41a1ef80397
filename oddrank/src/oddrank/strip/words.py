"""The fragment strip in words: its finding, and a line for each rank."""

from __future__ import annotations

from oddrank.strip.forwards import Forward, collectives

__all__ = ["FOOTNOTE", "NOTHING", "finding", "line", "part", "plural", "strip_text"]

NOTHING = "nothing was recorded: no forward ran inside the record"
FOOTNOTE = "Drawn from a profile, which lengthens short steps: read counts and order here, not speed."


def strip_text(run: Forward) -> str:
    """Describe in one line for each rank what the strip of a forward shows.

    Args:
        run: The forward.

    >>> from oddrank.record import Range, Segment, Tables
    >>> from oddrank.strip.forwards import take_forward
    >>> tables = Tables()
    >>> print(strip_text(take_forward(tables)))
    nothing was recorded: no forward ran inside the record
    >>> tables.segments.append(Segment(0, 0, "compute", 0.0, 600.0, "", "aten::mm"))
    >>> tables.ranges.append(Range(0, 0, "op", "aten::mm", 0.0, 600.0))
    >>> print(strip_text(take_forward(tables)))
    rank 0: eager, no collective
    """
    if run.empty:
        return NOTHING
    lines = [f"rank {rank}: {line(run, rank)}" for rank in run.ranks]
    if run.difference:
        lines.append(f"first difference between ranks, {part(run)}: {run.difference.text}")
    return "\n".join(lines)


def line(run: Forward, rank: int) -> str:
    """The counts of one rank in words."""
    n = run.counts.loc[rank]
    calls = plural(n.collectives, "collective")
    if not n.regions and not n.breaks:
        return f"eager, {calls}"
    return f"{plural(n.regions, 'region')}, {calls}, {plural(n.breaks, 'break')}"


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

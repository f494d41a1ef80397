"""The last calls of all ranks as a table: a row for each rank, a column for each number of a group."""

from __future__ import annotations

from collections.abc import Mapping

from oddrank.page import escape
from oddrank.postmortem.calls import Dump
from oddrank.postmortem.differences import Difference, Group, groups, likeness

__all__ = ["call_table"]

BEFORE, AFTER = 5, 6  # columns beside the first difference
MOST_GROUPS = 12
STYLE = """<style>.line{overflow-x:auto}.line td,.line th{padding:1px 6px;font-size:11px;white-space:nowrap;
border:1px solid var(--line)}.line td.same{color:var(--quiet)}.line td.odd{background:#D55E00;color:#fff}
.line td.open{font-weight:bold}.line td.none{background:#E69F00;color:#222}
.line td.unseen{color:var(--quiet);border-style:dashed}.line .at{border-top:3px solid #D55E00}</style>"""


def call_table(dumps: Mapping[int, Dump], found: list[Difference], ranks: list[int]) -> str:
    """Return the tables as HTML, those of groups with a difference first.

    Args:
        dumps: the flight records by rank.
        found: the first difference of each group.
        ranks: all that are known.
    """
    by_group = {(d.group.name, d.group.desc, d.group.members): d for d in found}
    every = groups(dumps)
    every.sort(key=lambda group: (group.name, group.desc, group.members) not in by_group)
    parts = [STYLE]
    for group in every[:MOST_GROUPS]:
        difference = by_group.get((group.name, group.desc, group.members))
        shown = _table(group, difference, ranks)
        summary = escape(f"{group}, {len(group.calls)} ranks: no difference")
        parts.append(shown if difference else f"<details><summary>{summary}</summary>{shown}</details>")
    if len(every) > MOST_GROUPS:
        parts.append(f"<p class='quiet'>… and {len(every) - MOST_GROUPS} more groups.</p>")
    return "".join(parts)


def _table(group: Group, difference: Difference | None, ranks: list[int]) -> str:
    last = max(max(calls) for calls in group.calls.values())
    first = difference.seq if difference else last
    columns = [n for n in range(max(1, first - BEFORE), first + AFTER + 1) if n <= last]
    members = list(group.members or (ranks if group.desc == "default_pg" else sorted(group.calls)))
    alike = {n: _usual(group, n) for n in columns}
    head = "".join(f"<th{' class=at' if difference and n == first else ''}>{n}</th>" for n in columns)
    body = ""
    for rank in members:
        cells = "".join(_cell(group, rank, n, alike[n]) for n in columns)
        body += f"<tr><th>rank {rank}</th>{cells}</tr>"
    title = f"{group}, ranks {len(members)}" + (
        f"; they differ at {first}" if difference else "; no difference"
    )
    return f"<h3>{escape(title)}</h3><div class='line'><table><tr><th></th>{head}</tr>{body}</table></div>"


def _usual(group: Group, number: int) -> tuple | None:
    counts: dict[tuple, int] = {}
    for calls in group.calls.values():
        if number in calls:
            kind = likeness(calls[number])
            counts[kind] = counts.get(kind, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    tie = len(ordered) > 1 and ordered[0][1] == ordered[1][1]
    return ordered[0][0] if ordered and not tie else None


def _cell(group: Group, rank: int, number: int, usual: tuple | None) -> str:
    if rank not in group.calls:
        return "<td class='unseen'>no call recorded</td>"
    calls = group.calls[rank].get(number)
    if not calls:
        past = number < min(group.calls[rank])
        return "<td class='unseen'>not kept</td>" if past else "<td class='none'>no call</td>"
    kind = "same" if likeness(calls) == usual else "odd"
    kind += " open" if calls[0].open else ""
    title = escape(f"{calls[0]} {calls[0].where} {calls[0].cite}")
    shape = "×".join(map(str, calls[0].inputs[0])) if calls[0].inputs else ""
    return f"<td class='{kind}' title='{title}'>{escape(calls[0].op)} {escape(shape)}</td>"

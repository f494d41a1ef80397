"""The summary for the terminal, and the page: one HTML file that loads nothing. All text of files is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from oddrank.page import document, escape, table
from oddrank.postmortem import differences
from oddrank.postmortem.call_table import timeline
from oddrank.postmortem.material import Material
from oddrank.postmortem.states import Said, spell
from oddrank.postmortem.tools import Tool
from oddrank.postmortem.verdict import Verdict

__all__ = ["html", "summary"]

MOST_ROWS = 400


def summary(verdict: Verdict, material: Material, source: str = "") -> str:
    """What the terminal shows: the verdict, the chain, what each rank did, what it compiled, and what is not known.

    Args:
        verdict: what was told.
        material: what was read.
        source: what was being compiled, as text.
    """
    known = [read for read in material.reads if read.kind]
    lines = [f"{len(known)} of {len(material.reads)} files recognised: {_kinds(material)}", ""]
    lines += [f"{verdict.kind.upper()}: {verdict.head}", *(f"  - {said}" for said in verdict.chain), ""]
    for name, ranks in _by_state(verdict).items():
        said = verdict.states[ranks[0]].said
        example = f"rank {ranks[0]}: " if len(ranks) > 1 else ""
        lines.append(f"{name}: {'rank' if len(ranks) == 1 else 'ranks'} {spell(ranks)} ({example}{said})")
    lines += ["", source] if source else []
    lines += ["", *(f"not known: {text}" for text in verdict.unknown)] if verdict.unknown else []
    return "\n".join(lines)


def _kinds(material: Material) -> str:
    counts: dict[str, int] = {}
    for read in material.reads:
        if read.kind:
            counts[read.kind] = counts.get(read.kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _by_state(verdict: Verdict) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name in ("dead", "compiling", "elsewhere", "waiting", "cut off", "ended", "unknown"):
        if ranks := [rank for rank, state in verdict.states.items() if state.name == name]:
            found[name] = ranks
    return found


def html(
    verdict: Verdict,
    material: Material,
    name: str,
    tools: list[Tool],
    source: Sequence[str] = (),
) -> str:
    """Return the page.

    Args:
        verdict: what was told.
        material: what was read.
        name: of the job's folder.
        tools: what became of tlparse and torchfrtrace.
        source: what the traces say of the program's lines, as parts of the page.
    """
    ranks = sorted(verdict.states)
    found = differences.differences(material.dumps, ranks)
    bad = "good" if verdict.kind == "nothing wrong" else "bad"
    parts = [
        "<style>td{overflow-wrap:anywhere}</style>",
        f"<h1>{escape(name)}</h1>",
        f"<p class='quiet'>{len(ranks)} ranks · {escape(_kinds(material))}</p>",
        f"<div class='{bad}'><b>{escape(verdict.kind)}</b>: {_said(verdict.head)}</div>",
        f"<ol>{''.join(f'<li>{_said(said)}</li>' for said in verdict.chain)}</ol>" if verdict.chain else "",
        *source,
        "<h2>What is not known</h2>",
        f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in verdict.unknown)}</ul>"
        if verdict.unknown
        else "<p>Nothing that was looked for.</p>",
        "<h2>What each rank did at the end</h2>",
        _states(verdict),
        "<h2>The calls around the first difference</h2>",
        "<p class='quiet'>A column is a number of the group. Orange: no call; red: another call; bold: not ended.</p>"
        + timeline(material.dumps, found, ranks)
        if material.dumps
        else "<p>There is no flight record.</p>",
        "<h2>Evidence</h2>",
        _rows(verdict, material),
        "<h2>Other tools</h2>",
        *(_tool(tool) for tool in tools),
        "<h2>Files</h2>",
        _files(material),
        "<p class='quiet'>This page loads nothing from a network. Its texts are those of the files.</p>",
    ]
    return document(f"{name}: oddrank postmortem", parts)


def _said(said: Said) -> str:
    places = ", ".join(map(escape, said.evidence[:6]))
    return escape(said.text) + (f" <span class='quiet'>[{places}]</span>" if places else "")


def _states(verdict: Verdict) -> str:
    """A row for each state and sentence: ranks that did the same are one row."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name, ranks in _by_state(verdict).items():
        for rank in ranks:
            groups.setdefault((name, verdict.states[rank].said.text), []).append(rank)
    rows = []
    for (name, text), ranks in groups.items():
        cites = ", ".join(dict.fromkeys(c for r in ranks[:3] for c in verdict.states[r].said.evidence[:1]))
        rows.append((name, spell(ranks), text, cites))
    return table(("state", "ranks", "what", "evidence"), rows)


def _rows(verdict: Verdict, material: Material) -> str:
    rows = [row for row in material.rows if row.kind not in ("hit", "miss", "graph", "traced")]
    rows.sort(key=lambda row: (row.rank not in verdict.ranks, row.kind in ("begin", "end")))
    shown = [(_text(r.rank), r.kind, r.time, r.text, r.where, r.cite) for r in rows[:MOST_ROWS]]
    columns = ("rank", "kind", "time", "text", "where", "evidence")
    return table(columns, shown, "Of the ranks of the verdict first; the files have the rest.")


def _text(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _tool(tool: Tool) -> str:
    if tool.link:
        return f"<p><a href='{escape(tool.link)}'>{escape(tool.name)}</a>: its own report.</p>"
    return f"<p>{escape(tool.name)}: {escape(tool.said)}.</p>"


def _files(material: Material) -> str:
    parts = []
    for title, known in (("Recognised", True), ("Not recognised, or not readable", False)):
        reads = [read for read in material.reads if bool(read.kind) is known]
        rows = [(read.file, read.kind or "-", _text(read.rank), read.note) for read in reads]
        parts.append(f"<h3>{title}</h3>" + table(("file", "taken for", "rank", "note"), rows))
    return "".join(parts)

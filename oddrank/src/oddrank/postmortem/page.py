"""The page: one HTML file that loads nothing. All text of files is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from oddrank.page import document, escape, table
from oddrank.postmortem.call_table import call_table
from oddrank.postmortem.differences import differences
from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import Sentence, rank_numbers
from oddrank.postmortem.summary import by_state, kinds
from oddrank.postmortem.tools import Tool
from oddrank.postmortem.verdict import Verdict

__all__ = ["html"]

MOST_ROWS = 400


def html(
    verdict: Verdict,
    material: Material,
    name: str,
    tools: list[Tool],
    source: Sequence[str] = (),
) -> str:
    """Return the page.

    Args:
        verdict: on the job.
        material: what was read.
        name: of the job's folder.
        tools: what became of tlparse and torchfrtrace.
        source: what the traces say of the program's lines, as parts of the page.
    """
    ranks = sorted(verdict.states)
    found = differences(material.dumps, ranks)
    bad = "good" if verdict.kind == "nothing wrong" else "bad"
    parts = [
        "<style>td{overflow-wrap:anywhere}</style>",
        f"<h1>{escape(name)}</h1>",
        f"<p class='quiet'>{len(ranks)} ranks · {escape(kinds(material))}</p>",
        f"<div class='{bad}'><b>{escape(verdict.kind)}</b>: {_sentence(verdict.head)}</div>",
        f"<ol>{''.join(f'<li>{_sentence(one)}</li>' for one in verdict.chain)}</ol>" if verdict.chain else "",
        *source,
        "<h2>What is not known</h2>",
        f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in verdict.unknown)}</ul>"
        if verdict.unknown
        else "<p>Nothing that was looked for.</p>",
        "<h2>What each rank did at the end</h2>",
        _states(verdict),
        "<h2>The calls around the first difference</h2>",
        "<p class='quiet'>A column is a number of the group. Orange: no call; red: another call; bold: not ended.</p>"
        + call_table(material.dumps, found, ranks)
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


def _sentence(sentence: Sentence) -> str:
    places = ", ".join(map(escape, sentence.evidence[:6]))
    return escape(sentence.text) + (f" <span class='quiet'>[{places}]</span>" if places else "")


def _states(verdict: Verdict) -> str:
    """A row for each state and sentence: ranks that did the same are one row."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name, ranks in by_state(verdict).items():
        for rank in ranks:
            groups.setdefault((name, verdict.states[rank].sentence.text), []).append(rank)
    rows = []
    for (name, text), ranks in groups.items():
        cites = ", ".join(
            dict.fromkeys(c for r in ranks[:3] for c in verdict.states[r].sentence.evidence[:1])
        )
        rows.append((name, rank_numbers(ranks), text, cites))
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
    return f"<p>{escape(tool.name)}: {escape(tool.why)}.</p>"


def _files(material: Material) -> str:
    parts = []
    for title, known in (("Recognised", True), ("Not recognised, or not readable", False)):
        files = [file for file in material.files if bool(file.kind) is known]
        rows = [(file.name, file.kind or "-", _text(file.rank), file.note) for file in files]
        parts.append(f"<h3>{title}</h3>" + table(("file", "taken for", "rank", "note"), rows))
    return "".join(parts)

"""The page of a script that failed before the steps to record were over: what was compiled, and what failed."""

from __future__ import annotations

import html as escaping
from pathlib import Path

import pandas as pd

from oddrank.counted import counted
from oddrank.live.failure import name_all
from oddrank.look import compile_start, frames, journal, program_source
from oddrank.look.breaks import breaks_of
from oddrank.look.look import Look
from oddrank.look.torchrun import LOGS
from oddrank.page import document
from oddrank.places import place
from oddrank.record.compiles import Try
from oddrank.record.guard_words import again
from oddrank.record.source import Sources
from oddrank.stages import guards as guards_of

__all__ = ["html", "text"]

TITLE = "failed before the steps to record were over"
ELSEWHERE = (
    "No compile had failed and none was under way: the error came from code that ran, not from compiling it."
)


def text(name: str, folder: Path) -> str:
    """Say in plain text what was compiled until the script failed.

    Args:
        name: Of the program.
        folder: Where the ranks wrote.
    """
    made = _compiled(folder)
    return "\n".join(
        [f"{name}: {TITLE}", "", made.to_string(index=False) if len(made) else "nothing was compiled"]
    )


def html(name: str, folder: Path, looked: Look | None, failure: str, tlparse: str = "") -> str:
    """Return the page.

    Args:
        name: Of the program.
        folder: Where the ranks wrote.
        looked: What ranks that ended by themselves wrote, without a step.
        failure: Why the script failed.
        tlparse: The address of tlparse's report, relative to the page, or a sentence that says why there is none.
    """
    ranks = journal.read(folder)
    breaks = dict.fromkeys(
        (one.name, one.kind, one.reason, one.place)
        for rank, compiles in ranks.items()
        for one in breaks_of(compile_start.tables(compiles, rank))
    )
    table = pd.DataFrame(list(breaks), columns=["name", "kind", "reason", "place"])
    ended = journal.ended(ranks, failure)
    parts = [
        f"<h1>{_e(name)}</h1><p class='bad'><b>The script {TITLE}.</b></p>",
        *(f"<p class='bad'>{_e(line)}</p>" for line in ended),
        f"<pre>{_e(failure)}</pre>",
        "" if ended else f"<p>{ELSEWHERE}</p>",
        *program_source.parts(program_source.of_traces(folder / LOGS)),
        "<h2>What was compiled until then</h2>",
        frames.table(_compiled(folder), "In order, functions of torch included."),
        "<h2>Breaks</h2>",
        frames.table(table, "In the whole run; where nothing was recorded, executions are not counted."),
        "<h2>Guards</h2>",
        *(
            _guards(looked.held["texts"])
            if looked
            else ["<p>No rank ended by itself, so none wrote them.</p>"]
        ),
        f"<p><a href='{_e(tlparse)}'>What every rank compiled, by tlparse</a></p>"
        if tlparse.endswith(".html")
        else "",
    ]
    return document(f"{name}: oddrank look", parts)


def _compiled(folder: Path) -> pd.DataFrame:
    """A row for each compile, with the ranks that did the same."""
    sources, rows = Sources(), {}  # type: Sources, dict[tuple[str, ...], list[int]]
    for rank, compiles in journal.read(folder).items():
        why = {one.compile: one.reason for one in breaks_of(compile_start.tables(compiles, rank))}
        for compile_ in compiles:
            row = compile_start.named(compile_, sources)
            key = row.name, place(row.file, row.line), again(row.reasons), _result(compile_, why)
            rows.setdefault(key, []).append(rank)
    columns = ["function", "place", "again, because", "result", "ranks"]
    return pd.DataFrame([(*key, name_all(sorted(set(who)))) for key, who in rows.items()], columns=columns)


def _result(compile_: Try, why: dict[str, str]) -> str:
    row = compile_.row
    if row.outcome == "unfinished":
        return "not ended"
    if row.outcome == "error":
        return f"failed: {compile_.failure[0]}"
    if row.outcome == "gave-up":
        return f"given up: {why.get(row.id) or compile_.failure[1].partition(chr(10))[0] or 'plain Python'}"
    return counted(row.operators, "operations") + (", then a graph break" if row.broke else "")


def _guards(texts: pd.DataFrame) -> list[str]:
    alike = texts.assign(text=texts["guards"].map(_telling))
    alike = alike[alike["text"] != ""].drop_duplicates(["name", "text"])
    shown = zip(alike["compile"], alike["name"], alike["text"], strict=True)
    return [
        f"<details><summary>{_e(number)} {_e(name)}</summary><pre>{_e(text)}</pre></details>"
        for number, name, text in shown
    ] or ["<p>None.</p>"]


def _telling(text: str) -> str:
    """The guards of a text without those that rarely fail: of torch's own state, and of kinds that every input has."""
    rarely = tuple(f"{kind}: " for kind in guards_of.FOLDED)
    each = (line.partition("  ") for line in text.splitlines())
    return "\n".join(
        f"{protects}  {test}"
        for protects, _, test in each
        if protects != guards_of.GLOBAL and not test.startswith(rarely)
    )


def _e(text: str) -> str:
    return escaping.escape(str(text))

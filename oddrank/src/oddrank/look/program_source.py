"""The program's source, annotated by rank, of what a look recorded: with the text as it was when the program ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from oddrank.look import rows, uncompiled
from oddrank.page import SOURCE_STYLE
from oddrank.places import is_library
from oddrank.record import Line, Mark, Table, Tables, read
from oddrank.record.source import Sources
from oddrank.source import AnnotatedSource
from oddrank.source.builder import listing
from oddrank.source.lanes import Eager
from oddrank.source.listing import Listing, Note

__all__ = ["TYPES", "annotated", "of_traces", "parts", "recorded", "texts"]

TYPES = {"rank": "int64", "file": "str", "line": "int64", "text": "str"}
WHOLE = 0  # in place of a line: the text is that of the whole file
HEADING = "<h2>The source, and what each rank did at each line</h2>"
MOST_TEXT = 512 << 10  # characters of a file, and lines that torch quotes of others


class _Kept(Sources):
    """The text of files as it was kept; nothing is read here, where a file of this name may be another one."""

    def __init__(self, kept: Mapping[str, str]) -> None:
        super().__init__()
        self._kept = kept

    def text(self, file: str) -> str:
        """The text of a file; '' where it was not kept."""
        return self._kept.get(file, "")


def texts(found: Tables, sources: Sources, forwards: pd.DataFrame | None = None) -> pd.DataFrame:
    """Keep the text of the program's files; of others, and where it is not here, the lines that torch quotes.

    Args:
        found: What was compiled, and the collectives that ran.
        sources: The files.
        forwards: What ran in Python, with the columns of `forwards.TYPES` without rank.

    Returns:
        Columns file, line (`WHOLE` for the whole file), text.
    """
    stand = {(mark.file, mark.line) for mark in found.marks}
    compiles, marks, ran = found.compiles, found.marks, found.collectives
    files = dict.fromkeys(
        [*(row.file for row in compiles), *(row.file for row in marks), *(row.file for row in ran)]
    )
    beside = [] if forwards is None else list(zip(forwards["file"], forwards["line"], strict=True))
    files |= dict.fromkeys(file for file, _ in beside)
    whole = {file: sources.text(file) for file in files if file and not is_library(file)}
    whole = {file: text for file, text in whole.items() if 0 < len(text) <= MOST_TEXT}
    kept = [(file, WHOLE, text) for file, text in whole.items()]
    left = MOST_TEXT
    for row in found.code:
        if row.file not in whole and (row.file, row.line) in stand and len(row.text) <= left:
            kept.append((row.file, row.line, row.text))
            left -= len(row.text)
    for file, line in beside:
        if file not in whole and len(text := sources.line(file, line)) <= left:
            kept.append((file, line, text))
            left -= len(text)
    return pd.DataFrame(kept, columns=["file", "line", "text"])


def parts(drawn: AnnotatedSource | None) -> list[str]:
    """The source as parts of a page; none for None."""
    return [HEADING, SOURCE_STYLE, drawn._repr_html_()] if drawn else []


def annotated(
    lines: Tables,
    kept: pd.DataFrame,
    around: pd.DataFrame | None = None,
    forwards: pd.DataFrame | None = None,
) -> AnnotatedSource:
    """Annotate the source of what ranks compiled and ran.

    Args:
        lines: What they compiled, with operators and runs, and the collectives of the recorded steps.
        kept: What `texts` kept.
        around: Calls of modules around what is compiled of them, with the columns of `uncompiled.TYPES`.
        forwards: Forwards that ran in Python, with the columns of `forwards.TYPES`.
    """
    each = list(zip(kept["file"], kept["line"], kept["text"], strict=True))
    whole = {file: text for file, line, text in reversed(each) if line == WHOLE}
    split = {file: text.splitlines() for file, text in whole.items()}
    stand = {(m.file, m.line) for m in lines.marks} | {(c.file, c.line) for c in lines.collectives}
    # lines of a script that stand in no function
    each += [(file, n, split[file][n - 1]) for file, n in sorted(stand) if 0 < n <= len(split.get(file, ()))]
    quoted = Table(Line, (Line(*one) for one in dict.fromkeys(each) if one[1] != WHOLE))
    marks = Table(
        Mark, (mark if mark.kind in rows.LEFT_OUT else mark.without_paths() for mark in lines.marks)
    )
    drawn = replace(lines, marks=marks, code=quoted)
    beside = [] if forwards is None else [Eager(**row) for row in forwards.to_dict("records")]
    made = listing(drawn, libraries=True, sources=_Kept(whole), eager=beside)
    if around is not None:
        _note_eager(made, around)
    return AnnotatedSource(made)


def _note_eager(made: Listing, around: pd.DataFrame) -> None:
    """Say at a function that is compiled where it ran in eager, too."""
    told = uncompiled.often(around).groupby(["file", "line", "place"], sort=False)
    for (file, line, place), calls in told:
        ranks = sorted(set(calls["rank"]))
        who = "" if ranks == made.ranks else f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        words = f"{calls['calls'].max()} times from {place}, around what is compiled"
        for section in made.sections:
            if (section.file, section.first) == (file, line) and section.rows:
                row = section.rows[0]
                row.notes[:] = [
                    note for note in row.notes if note.kind != "eager"
                ]  # one sentence on it is enough
                row.notes.insert(0, Note("def", words, who))


def recorded(tables: Mapping[str, pd.DataFrame], torch: str = "") -> AnnotatedSource | None:
    """Annotate from the tables of a look's report; None for another report, or an older one without the source.

    Args:
        tables: By name.
        torch: The version of torch.

    Raises:
        ValueError: A table lacks a column, or a cell holds something else than its column does.
    """
    names = {
        "compiles": "all_compiles",
        "marks": "all_marks",
        "collectives": "collectives",
        "ranges": "ranges",
    }
    if not {"sources", *names.values()} <= tables.keys():
        return None
    lines = rows.tables({part: tables[name] for part, name in names.items()}, torch=torch)
    for one in lines.ranges:
        if one.kind == "forward" and one.forward >= 0:
            lines.profiled[one.rank] = lines.profiled.get(one.rank, 0) + 1
    return annotated(lines, tables["sources"], tables.get("around"), tables.get("forwards"))


def of_traces(folder: Path) -> AnnotatedSource | None:
    """Annotate from what TORCH_TRACE wrote to a folder, on the machine where it did; None where there is none.

    Args:
        folder: The folder.
    """
    try:
        lines = read(folder)
    except (OSError, ValueError):
        return None
    return annotated(lines, texts(lines, Sources()))

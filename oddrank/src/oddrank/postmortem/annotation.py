"""The program's source, annotated by rank, from the logs of TORCH_TRACE: first what was being compiled, then all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oddrank.page import SOURCE_STYLE
from oddrank.places import is_library
from oddrank.postmortem.material import Material
from oddrank.record import Mark, Table, Tables, merge
from oddrank.record.compiles import Compiles, Parsed
from oddrank.record.source import Sources
from oddrank.record.trace_log import in_file
from oddrank.source import AnnotatedSource
from oddrank.source.builder import listing
from oddrank.source.listing import Listing, Section

__all__ = ["Annotation", "annotation", "source", "unfinished"]

MOST_BYTES = 8 << 30  # of all traces
BEFORE, AFTER = 2, 6  # lines around the one at which a compile began
MOST_OPEN = 4  # functions that were being compiled
MOST_FUNCTIONS = 500
MOST_HTML = 16 << 20  # characters
MOST_LINES, MOST_WIDE = 30, 200  # of the terminal


@dataclass(frozen=True)
class Annotation:
    """The source as it is shown: `text` for the terminal, of what was being compiled, and `parts` of the page."""

    text: str = ""
    parts: tuple[str, ...] = ()


class _Own(Sources):
    """The text of the program's files. A library here may be another version: its lines are those of the trace."""

    def text(self, file: str) -> str:
        """The text of a file; '' of a library, and where it is not here."""
        return "" if is_library(file) else super().text(file)


def annotation(material: Material) -> Annotation:
    """Draw the source of what a job compiled; nothing where no log of TORCH_TRACE has a compile."""
    whole = source(material)
    if whole is None:
        return Annotation()
    text, parts = "", []
    if open_ := unfinished(whole):
        whole_text = open_.text().partition("\n\n")[2]  # without the key to what a whole source has
        text = "\n".join(line[:MOST_WIDE] for line in whole_text.splitlines()[:MOST_LINES])
        # a link to a function leads to the whole of it
        parts = ["<h2>What was being compiled</h2>", _html(open_)]
    n = len(whole.listing.sections)
    summary = f"<summary>{n} function{'s' * (n != 1)}</summary>"
    parts += [
        "<h2>The source, and what each rank compiled of it</h2>",
        f"<details>{summary}{_html(whole)}</details>",
    ]
    return Annotation(text, (SOURCE_STYLE, *parts))


def _html(whole: AnnotatedSource) -> str:
    html = whole._repr_html_()
    return html if len(html) <= MOST_HTML else f"<p>Not shown: it has {len(html) >> 20} MB.</p>"


def source(material: Material) -> AnnotatedSource | None:
    """The annotated source of what a job compiled; None where no log of TORCH_TRACE has a compile."""
    sources, parsed, left = _Own(), Parsed(), MOST_BYTES
    parts: dict[int, Tables] = {}
    notes: list[str] = []
    traces = [file for file in material.files if file.kind == "TORCH_TRACE"]
    for file in sorted(traces, key=lambda file: -file.written):
        left -= file.size
        if left < 0:
            notes.append(f"{file.name} was not read: the traces are too large")
            continue
        log = Compiles(file.rank, sources, parsed)
        try:
            for entry in in_file(file.path, notes.append):
                log.feed(entry)
        except OSError:  # a job that goes on may take it away
            continue
        log.rank = rank = log.rank or 0
        if log.tries and rank in parts:
            notes.append(f"{file.name} was not read: a newer trace is of the same rank")
        elif log.tries:
            parts[rank] = log.tables(log.chosen())
    if not parts:
        return None
    made = merge(dict(sorted(parts.items())))
    made.marks = Table(
        Mark, (mark if mark.kind in ("op", "kernel") else mark.without_paths() for mark in made.marks)
    )
    made.notes = [*notes, *made.notes]
    found = listing(made, libraries=True, sources=sources)
    if (more := len(found.sections) - MOST_FUNCTIONS) > 0:
        found.sections.sort(key=lambda section: _began(section) is None)
        del found.sections[MOST_FUNCTIONS:]
        found.notes.append(f"{more} more functions are not shown")
    return AnnotatedSource(found)


def unfinished(whole: AnnotatedSource) -> AnnotatedSource | None:
    """The lines around what ranks were compiling when their traces end; None where no rank was, or none is known.

    Args:
        whole: Of all that was compiled.
    """
    listing_ = whole.listing
    found = []
    for section in listing_.sections:
        if (at := _began(section)) is not None:
            rows = section.rows[max(at - BEFORE, 0) : at + AFTER + 1]
            found.append(replace(section, rows=rows, library=False))
    more = len(found) - MOST_OPEN
    notes = [f"{more} more functions were being compiled"] if more > 0 else []
    open_ = Listing(found[:MOST_OPEN], listing_.ranks, listing_.torch, notes, listing_.counted)
    return AnnotatedSource(open_) if found else None


def _began(section: Section) -> int | None:
    """The row at which a compile began that has no end; None for none, and where the line is not here."""
    for i, row in enumerate(section.rows):
        if row.text and any(note.kind == "unfinished" for note in row.notes):
            return i
    return None

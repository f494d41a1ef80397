"""The annotated source: each function that was compiled, and what each rank did at each of its lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from oddrank.record.source import Sources
from oddrank.record.tables import Tables, merge
from oddrank.source import html, text
from oddrank.source.against import against
from oddrank.source.builder import listing
from oddrank.source.listing import Listing

__all__ = ["AnnotatedSource", "annotate", "compare"]


class AnnotatedSource:
    """The annotated source of a run. A notebook shows it as a table, a terminal as text.

    Attributes:
        listing: What it shows: functions, ranks that are alike, lines, and what stands beside them.
    """

    def __init__(self, listing: Listing, title: str = "") -> None:
        self.listing = listing
        self.title = title

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html.fragment(self.listing, self.title)

    def text(self, colour: bool = False, width: int = 118) -> str:
        """Lines for a terminal.

        Args:
            colour: Whether to use its colours.
            width: In columns.
        """
        return text.draw(self.listing, colour, width)

    def page(self) -> str:
        """A whole page of HTML, which loads nothing and runs nothing."""
        return html.page(self.listing, self.title)


def compare(old: AnnotatedSource, new: AnnotatedSource, title: str = "") -> AnnotatedSource:
    """Two runs beside each other: lines are matched by their text.

    Args:
        old, new: The runs.
        title: As for `annotate`.
    """
    return AnnotatedSource(against(old.listing, new.listing), title or new.title)


def annotate(
    runs: Tables | Mapping[int, Tables] | Iterable[Tables],
    *,
    shapes: bool = False,
    libraries: bool = False,
    notebooks: Iterable[str | os.PathLike[str]] = (),
    title: str = "",
) -> AnnotatedSource:
    """Annotate the source of what was compiled, by rank.

    Args:
        runs: The tables of a run: what `record` made, on one rank or on several, or what `read` found in a folder.
        shapes: Say beside each line what it makes, such as `f32[4, s0]`, and count another type as a difference.
        libraries: Show all functions of libraries, too. One in which the program's graph broke is there, folded.
        notebooks: Notebooks whose cells were run by another kernel.
        title: The heading; the names of the files where it is ''.

    Raises:
        OSError, ValueError: A notebook cannot be read.
        ValueError: There are no tables, or two of one rank.

    >>> from oddrank.record.tables import Compile
    >>> tables = Tables()
    >>> tables.compiles.append(Compile(0, "0/0", "gone.py", 3, "step", outcome="graph", operators=1, graphs=1))
    >>> print(annotate(tables).text().splitlines()[0])
    1 rank · no counts: nothing was profiled
    """
    sources = Sources()
    for notebook in notebooks:
        sources.add_notebook(notebook)
    tables = runs if isinstance(runs, Tables) else merge(runs)
    return AnnotatedSource(listing(tables, shapes, libraries, sources), title)

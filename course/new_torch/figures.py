"""Facts by versions of torch, drawn."""

from __future__ import annotations

import pandas as pd

from course.shared.matrix import Cell, matrix
from labkit.views.style import Figure, Sheet, empty_figure, styled

__all__ = ["news"]

# Okabe-Ito
LOOKS = {
    "yes": "#0072B2",
    "no": "#D55E00",
    "error": "#F0E442",
    "cannot tell": "#BBBBBB",
    "not run": "#FFFFFF",
}


@styled
def news(table: pd.DataFrame, facts: int, label: str) -> Figure:
    """Draw what each version of torch answers to the facts that differ between versions.

    Args:
        table: a row for each fact by its id, a column for each version with its answer, then the column `word`.
        facts: the number of all facts.
        label: where the answers are from.

    Returns:
        The figure.

    Raises:
        ValueError: the table has no version, or an answer that is none of `LOOKS`.

    >>> table = pd.DataFrame({"2.12.0": ["no"], "2.13.0": ["yes"], "word": ["since 2.13"]}, index=["breaks.one"])
    >>> news(table, 2, "recorded").summary[:36]
    '1 of 2 facts changed in some release'
    """
    versions = [column for column in table.columns if column != "word"]
    if not versions:
        raise ValueError("no torch version is recorded: `labkit ledger --torch 2.15.0` makes one")
    unknown = sorted(set(table[versions].to_numpy().ravel()) - set(LOOKS))
    if unknown:
        raise ValueError(f"there is no answer {unknown[0]!r}: there are {', '.join(LOOKS)}")
    sheet = Sheet()
    if table.empty:
        return empty_figure(sheet, f"None of {facts} facts differs between versions", label)
    sheet.title(
        f"{len(table)} of {facts} facts changed in some release from torch {versions[0]} to {versions[-1]}",
        "What each version answers; after the name stands the word that follows from yes and no.",
    )
    cells = [
        Cell(i, j, LOOKS[answer], answer)
        for i, row in enumerate(table[versions].to_numpy())
        for j, answer in enumerate(row)
    ]
    heads = [f"torch {version}" for version in versions]
    matrix(sheet, [f"{name} · {word}" for name, word in table["word"].items()], heads, cells, height=0.24)
    for name, row in table.iterrows():
        said = ", ".join(f"{row[version]} on {version}" for version in versions)
        sheet.say(f"{name}: {said}: {row['word']}")
    return sheet.finish(label)

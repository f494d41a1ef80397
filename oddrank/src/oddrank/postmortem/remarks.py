"""Remarks beside a verdict: calls in foreign groups, processes of which the rank is not known, an end from outside."""

from __future__ import annotations

from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import Sentence, sentence

__all__ = ["outside", "strangers", "strays"]

MOST = 8


def strangers(material: Material) -> list[Sentence]:
    """Calls in a group that the rank is not in, of which torch warns: such a call does nothing."""
    sentences: dict[int, Sentence] = {}
    for row in material.rows:
        if row.kind == "stranger" and row.rank is not None:
            text = f"rank {row.rank} called {row.key} in a group that it is not in, and so did nothing there"
            sentences.setdefault(row.rank, sentence(text, row))
    return list(sentences.values())[:MOST]


def outside(material: Material) -> list[Sentence]:
    """A signal that the launcher got, or Slurm's text that it ended the job."""
    rows = [row for row in material.rows if row.kind == "outside"][:1]
    return [sentence(f"the job was ended from outside: {row.text}", row) for row in rows]


def strays(material: Material) -> list[Sentence]:
    """Stacks of processes of which nothing says which rank they are."""
    rows = [row for row in material.rows if row.kind == "stack" and row.rank is None and row.key]
    sentences = []
    for row in rows[:MOST]:
        what = f"{row.text}, at " if row.text != "elsewhere" else "at "
        text = f"process {row.key}, of which nothing says the rank, is {what}{row.where or row.frames[0]}"
        sentences.append(sentence(text, row))
    return sentences

"""The decision table: for each collective, what the installed torch does with each of its forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from labkit import lessons
from labkit.ranks import Ranks
from labkit.study.checks import quietly

__all__ = ["agreed", "decide", "decision"]


def decision(ranks: Ranks, names: Sequence[str] = (), *, timeout: float | None = 300.0) -> pd.DataFrame:
    """Measure the decision table of collectives with `decide` of lesson 02.

    Args:
        ranks: started ranks.
        names: names of collectives in lesson 02; all that have a functional form without.
        timeout: in seconds.

    Returns:
        One row a collective: whether each form stays in one graph, whether in place and functional compile to the same
        code, the gradient of each in eager and compiled, and whether a gate is worth it. Where the ranks disagree, a
        cell holds what each of them found.

    Raises:
        RankError: a rank fails.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     decision(ranks, ["all_reduce sum", "broadcast"])[["collective", "compiled: in place", "gate"]]
           collective compiled: in place gate
    0  all_reduce sum          one graph   no
    1       broadcast             breaks  yes
    """
    chosen = list(names or lessons.program("functional").FUNCTIONAL)
    return pd.DataFrame(agreed(ranks.run(quietly, decide, chosen, timeout=timeout)))


def decide(names: Sequence[str]) -> list[dict[str, str]]:
    """On a rank: the rows of these collectives, measured with `decide` of lesson 02."""
    return [lessons.program("functional").decide(name) for name in names]


def agreed(found: Iterable[Sequence[Mapping[str, str]]]) -> list[dict[str, str]]:
    """Merge the rows of all ranks: a cell holds one value, or what each of them found where they disagree.

    >>> agreed([[{"gate": "no"}], [{"gate": "yes"}]])
    [{'gate': 'no / yes'}]
    """
    return [
        {column: " / ".join(dict.fromkeys(row[column] for row in of)) for column in of[0]}
        for of in zip(*found, strict=True)
    ]

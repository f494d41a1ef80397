"""The decision table: for each collective, what the installed torch does with each of its forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit import lessons
from labkit.ranks import Ranks
from labkit.study.checks import quietly

__all__ = ["decision"]


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
    found = ranks.run(quietly, _decide, chosen, timeout=timeout)
    rows = [
        {column: _agreed(row[column] for row in of) for column in of[0]} for of in zip(*found, strict=True)
    ]
    return pd.DataFrame(rows)


def _decide(names: list[str]) -> list[dict[str, str]]:
    return [lessons.program("functional").decide(name) for name in names]


def _agreed(values: Any) -> str:
    return " / ".join(dict.fromkeys(values))

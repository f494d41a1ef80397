"""Spans of time: their union, what two lists share, and how much communication has computation beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["Span", "covered", "length", "meet", "union"]

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Spans as few as possible that cover the same time, in order.

    >>> union([(3, 4), (0, 2), (1, 3)])
    [(0, 4)]
    """
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def meet(one: Iterable[Span], other: Iterable[Span]) -> list[Span]:
    """The time that both cover.

    >>> meet([(0, 4), (6, 8)], [(3, 7)])
    [(3, 4), (6, 7)]
    """
    a, b, found = union(one), union(other), []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            found.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(spans: Iterable[Span]) -> float:
    """How much time the spans cover together."""
    return float(sum(end - start for start, end in union(spans)))


def covered(communication: Iterable[Span], compute: Iterable[Span]) -> float:
    """The share of the communication during which there was computation; nan without communication.

    >>> covered([(0, 4)], [(3, 9)])
    0.25
    """
    communication = list(communication)
    whole = length(communication)
    return length(meet(communication, compute)) / whole if whole else math.nan

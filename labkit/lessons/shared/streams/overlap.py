"""Three things that people call overlap, computed from one timeline: they agree only where nothing is slowed down.

covered   the share of the communication during which this rank computed as well
folded    (communication + computation - the time that both took together) / the smaller of the two
saved     (time in sequence - time side by side) / the smaller of the two, each measured on its own
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["Span", "covered", "exposed", "folded", "length", "meet", "saved", "union"]

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


def exposed(communication: Iterable[Span], compute: Iterable[Span]) -> float:
    """How much time there is communication and no computation.

    >>> exposed([(0, 4)], [(3, 9)])
    3.0
    """
    communication = list(communication)
    return length(communication) - length(meet(communication, compute))


def covered(communication: Iterable[Span], compute: Iterable[Span]) -> float:
    """The share of the communication during which there was computation; nan without communication.

    >>> covered([(0, 4)], [(3, 9)])
    0.25
    """
    communication = list(communication)
    whole = length(communication)
    return length(meet(communication, compute)) / whole if whole else math.nan


def folded(communication: Iterable[Span], compute: Iterable[Span]) -> float:
    """Sum minus total, as a share of the smaller part; nan where a part is missing.

    The total is from the first start to the last end. Negative where there are gaps in which neither went on.

    >>> folded([(0, 4)], [(3, 9)])
    0.25
    """
    communication, compute = list(communication), list(compute)
    parts = length(communication), length(compute)
    if not min(parts):
        return math.nan
    both = union([*communication, *compute])
    return (sum(parts) - (both[-1][1] - both[0][0])) / min(parts)


def saved(sequence: float, together: float, communication: float, compute: float) -> float:
    """What running side by side saves of what it could save: times of four separate runs.

    Above 1 or below 0 where the runs slow each other, or the machine, down. Raises ValueError for a time that is not
    above 0.

    >>> saved(sequence=10, together=7, communication=4, compute=6)
    0.75
    """
    for name, value in (("sequence", sequence), ("together", together), ("communication", communication)):
        if not value > 0:
            raise ValueError(f"{name} must be a time above 0, got {value!r}")
    if not compute > 0:
        raise ValueError(f"compute must be a time above 0, got {compute!r}")
    return (sequence - together) / min(communication, compute)

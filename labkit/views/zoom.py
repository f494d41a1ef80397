"""The piece of a forward to magnify: a typical block, or where ranks first differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.views.forwards import Forward, collectives

__all__ = ["Span", "choose_piece", "same_piece"]

Span = tuple[float, float]

LEAST = 2.0  # a piece that would be magnified less is not worth a panel of its own
PIECE = 4  # collectives in a piece where no repeating pattern of regions says how long a block is


def choose_piece(run: Forward, many: int) -> Span | None:
    """Choose the piece of one forward to magnify: where ranks first differ, else a typical block.

    Args:
        run: the forward.
        many: the number of segments on a rank beyond which the whole cannot be read.

    Returns:
        Start and end in ms, or None where the whole can be read, or the piece would be magnified less than `LEAST`
        times.
    """
    if run.densest <= many:
        return None
    piece = _difference(run) if run.difference else _span(run, *typical_block([run]))
    return piece if _magnified(run.duration, [piece]) else None


def same_piece(runs: Mapping[str, Forward], many: int) -> dict[str, Span]:
    """Choose the same piece of every variant: between the same collectives, however long each one takes.

    Args:
        runs: forwards by variant.
        many: as for `choose_piece`.

    Returns:
        Start and end in ms by variant; empty where nothing is to be magnified, there are more than three variants, or
        a piece would be magnified less than `LEAST` times.
    """
    full = {name: run for name, run in runs.items() if not run.empty}
    if len(full) > 3 or not any(run.densest > many for run in full.values()):
        return {}
    if any(_calls(run).empty for run in full.values()):  # nothing that all of them could be counted by
        pieces = {name: _middle(run) for name, run in full.items()}
    else:
        first, last = typical_block(list(full.values()))
        pieces = {name: _span(run, first, last) for name, run in full.items()}
    longest = max(run.duration for run in full.values())
    return pieces if _magnified(longest, pieces.values()) else {}


def _magnified(total: float, pieces: Iterable[Span]) -> bool:
    """Whether the longest of these pieces, drawn as wide as `total` ms, is magnified enough to be worth a panel."""
    return total >= LEAST * max(end - start for start, end in pieces)


def typical_block(runs: Sequence[Forward]) -> tuple[int, int]:
    """Find a typical block of these forwards.

    A block is one period in the sequence of regions that the collectives of the most fragmented forward stand in. Where
    that sequence shows none (one region, or no region), it is `PIECE` collectives. Typical is the block that takes
    nearest to the median of its forward, so that a moment in which the machine was busy is not magnified. Where there
    are graph breaks, it holds one.

    Returns:
        The numbers of its first collective and of the first collective of the next block.
    """
    most = max(runs, key=lambda run: run.counts["regions"].max())
    ids = list(_calls(most)["compile_id"])
    length = next((p for p in range(2, len(ids) // 2 + 1) if ids[p:] == ids[:-p]), 0)
    if not length or len(set(ids)) == 1:
        length = min(PIECE, max(len(ids), 1))
    firsts = np.arange(0, max(len(ids) - length, 0) + 1, length)
    away = np.zeros(len(firsts))
    for run in runs:
        start, end = _spans(run, firsts, length)
        took = np.maximum(end - start, 1e-9)
        away = np.maximum(away, np.abs(np.log(took / np.median(took))))
    start, end = _spans(most, firsts, length)
    at = most.breaks["at"].to_numpy()[:, None]
    broken = ((start <= at) & (at <= end)).any(axis=0)
    away[~broken] += np.inf if broken.any() else 0.0  # the breaks are what a fragmented forward is drawn for
    # the ends of a forward also hold what comes before its first and after its last block
    inner = slice(1, -1) if len(firsts) > 2 else slice(None)
    first = int(firsts[inner][np.argmin(away[inner])])
    return first, first + length


def _calls(run: Forward) -> pd.DataFrame:
    """The collectives of the lowest rank, without their waits."""
    return collectives(run.segments[run.segments["rank"] == run.ranks[0]])


def _span(run: Forward, first: int, last: int) -> Span:
    """The time from the end of the collective before number `first` to the end of the one before `last`."""
    (start,), (end,) = _spans(run, np.array([first]), last - first)
    return (float(start), float(end)) if start < end else (0.0, run.duration)


def _spans(run: Forward, firsts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Where pieces of `length` collectives start and end, for each first one."""
    starts = _calls(run)["start"].to_numpy()
    if not len(starts):
        middle = _middle(run)
        return np.full(len(firsts), middle[0]), np.full(len(firsts), middle[1])
    mine = run.segments[run.segments["rank"] == run.ranks[0]]
    ends = np.sort(
        mine.loc[mine["kind"] == "collective", "end"].to_numpy()
    )  # with the waits that belong to them

    def edges(numbers: np.ndarray) -> np.ndarray:
        inside = np.minimum(numbers, len(starts) - 1)
        before = np.searchsorted(ends, starts[inside], side="right") - 1
        found = np.where(before >= 0, ends[np.maximum(before, 0)], 0.0)
        return np.where(numbers == 0, 0.0, np.where(numbers < len(starts), found, run.duration))

    return edges(firsts), edges(firsts + length)


def _middle(run: Forward) -> Span:
    """A tenth of the forward, in its middle."""
    return run.duration * 0.45, run.duration * 0.55


def _difference(run: Forward) -> Span:
    assert run.difference is not None
    start = min(start for start, _ in run.difference.spans.values())
    end = max(end for _, end in run.difference.spans.values())
    margin = max(0.02 * run.duration, 2 * (end - start))
    return max(0.0, start - margin), min(run.duration, end + margin)

"""Microbatches of lesson 06: each part's sum in line, and beside the next part's product."""

from __future__ import annotations

from typing import Any

from course.shared.program import choose
from course.streams.declared import MICROBATCH as ABOUT
from course.streams.experiment import side_by_side
from labkit.ranks import Ranks
from labkit.report import Report

__all__ = ["run"]


def run(
    ranks: Ranks, *, size: int = 1024, rounds: int = 20, program: Any = None, talk: bool = False
) -> Report:
    """Run `part_by_part` and `overlapped` of lesson 06 with four parts.

    Args:
        ranks: two ranks or more on GPUs; on a CPU the functions are simulated.
        size: of the matrices on a GPU.
        rounds: interleaved rounds.
        program: the cells of lesson 06, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.
        talk: accepted like every experiment's; nothing is said on the way.

    Returns:
        The report of `side_by_side`.

    Raises:
        ValueError: rounds are fewer than two.
        RankError: a rank failed.
    """
    names = ("part_by_part", "overlapped")
    return side_by_side(ranks, ABOUT, choose("streams", program, names), names, 2, size, rounds)

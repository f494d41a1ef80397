"""Overlap on spans that can be worked out by hand."""

from __future__ import annotations

import math

import pytest

from course.shared.streams import Program, overlap, simulate


def test_spans_are_united_and_met():
    assert overlap.union([(5, 6), (0, 1), (1, 2), (4, 4)]) == [(0, 2), (5, 6)]
    assert overlap.meet([(0, 10)], [(2, 3), (5, 20)]) == [(2, 3), (5, 10)]
    assert overlap.length([]) == 0


@pytest.mark.parametrize(
    ("communication", "compute", "covered"),
    [
        ([(0, 4)], [(4, 10)], 0),  # in sequence
        ([(0, 4)], [(0, 6)], 1),  # all of it beside
        ([(0, 6)], [(0, 3)], 0.5),  # computation is the smaller part
        ([(0, 4)], [(6, 10)], 0),  # a gap
        ([(0, 2), (1, 4)], [(3, 8)], 0.25),
    ],
)
def test_covered(communication, compute, covered):
    assert overlap.covered(communication, compute) == covered


def test_without_a_part_there_is_nothing_to_say():
    assert math.isnan(overlap.covered([], [(0, 1)]))


def test_one_simulated_timeline():
    def program(side: bool) -> Program:
        p = Program(streams="comm")
        p.kernel("sum", 4, "comm" if side else "default", kind="collective")
        p.kernel("mm", 6)
        return p

    one, other = simulate(program(False)), simulate(program(True))
    assert (other.hidden(), one.hidden()) == (1, 0)
    assert one.communication() == other.communication() == 4

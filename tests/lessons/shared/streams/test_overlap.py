"""Three definitions of overlap on spans that can be worked out by hand."""

from __future__ import annotations

import math

import pytest

from labkit.lessons.shared.streams import Program, overlap, simulate


def test_spans_are_united_and_met():
    assert overlap.union([(5, 6), (0, 1), (1, 2), (4, 4)]) == [(0, 2), (5, 6)]
    assert overlap.meet([(0, 10)], [(2, 3), (5, 20)]) == [(2, 3), (5, 10)]
    assert overlap.length([]) == 0


@pytest.mark.parametrize(
    ("communication", "compute", "covered", "folded"),
    [
        ([(0, 4)], [(4, 10)], 0, 0),  # in sequence
        ([(0, 4)], [(0, 6)], 1, 1),  # all of it beside
        ([(0, 6)], [(0, 3)], 0.5, 1),  # computation is the smaller part
        ([(0, 4)], [(6, 10)], 0, -0.5),  # a gap
        ([(0, 2), (1, 4)], [(3, 8)], 0.25, 0.25),
    ],
)
def test_covered_and_folded(communication, compute, covered, folded):
    assert overlap.covered(communication, compute) == covered
    assert overlap.folded(communication, compute) == folded


def test_without_a_part_there_is_nothing_to_say():
    assert math.isnan(overlap.covered([], [(0, 1)])) and math.isnan(overlap.folded([(0, 1)], []))


def test_saved_compares_two_runs_and_can_be_negative():
    assert overlap.saved(10, 6, 4, 6) == 1 and overlap.saved(10, 12, 4, 6) == -0.5
    for wrong in ((0, 1, 1, 1), (1, 1, 1, 0)):
        with pytest.raises(ValueError, match="must be a time above 0"):
            overlap.saved(*wrong)


def test_the_three_on_one_simulated_timeline():
    def program(side: bool) -> Program:
        p = Program(streams="comm")
        p.collective("sum", 4, on="comm" if side else None)
        p.kernel("mm", 6)
        return p

    one, other = simulate(program(False)), simulate(program(True))
    assert other.definitions(one) == {"covered": 1, "folded": 1, "saved": 1}
    assert one.definitions(one) == {"covered": 0, "folded": 0, "saved": 0}
    assert other.exposed() == 0 and one.exposed() == 4

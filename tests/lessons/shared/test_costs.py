"""The cost model: its terms against a ring that is really walked."""

from __future__ import annotations

import pytest

from course.shared.costs import terms


def walked(world_size: int, chunks_each: int = 1) -> tuple[int, int, list[list[int]]]:
    """An all_reduce as a ring does it, in plain Python: (steps, chunks that a rank sends, everybody's result)."""
    p = world_size
    have = [[10**rank * (c + 1) for c in range(p)] for rank in range(p)]
    steps = sent = 0
    for i in range(p - 1):  # add up: each rank hands one chunk to the next
        moved = [(rank, (rank - i) % p) for rank in range(p)]
        for (_, c), value, to in [((r, c), have[r][c], (r + 1) % p) for r, c in moved]:
            have[to][c] += value
        steps, sent = steps + 1, sent + chunks_each
    for i in range(p - 1):  # hand out the sums
        moved = [(rank, (rank + 1 - i) % p) for rank in range(p)]
        for to, c, value in [((r + 1) % p, c, have[r][c]) for r, c in moved]:
            have[to][c] = value
        steps, sent = steps + 1, sent + chunks_each
    return steps, sent, have


@pytest.mark.parametrize("p", [1, 2, 5])
def test_a_ring_takes_the_steps_and_the_bytes_of_the_formula(p):
    steps, chunks, have = walked(p)
    assert have == [[sum(10**r for r in range(p)) * (c + 1) for c in range(p)]] * p  # it is an all_reduce
    assert terms("all_reduce", p, 840) == (steps, chunks * 840 / p)
    halves = [terms(name, p, n) for name, n in (("reduce_scatter", 840), ("all_gather", 840 / p))]
    assert [sum(part) for part in zip(*halves, strict=True)] == pytest.approx([steps, chunks * 840 / p])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: terms("broadcast", 2, 4), "no cost is known of 'broadcast'"),
        (lambda: terms("all_reduce", 0, 4), "world_size must be a whole number of at least 1, got 0"),
        (lambda: terms("all_reduce", 2.0, 4), "world_size must be a whole number"),
        (lambda: terms("all_reduce", 2, -1), "bytes must be a finite number of 0 or more, got -1"),
    ],
)
def test_what_is_no_constant_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()

"""The cost model: its terms against a ring that is really walked, its fits against planted constants."""

from __future__ import annotations

import random

import pytest

from course.shared import costs
from course.shared.costs import Compute, Link, fit_compute, fit_link, step, terms


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


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_a_ring_takes_the_steps_and_the_bytes_of_the_formula(p):
    steps, chunks, have = walked(p)
    assert have == [[sum(10**r for r in range(p)) * (c + 1) for c in range(p)]] * p  # it is an all_reduce
    assert terms("all_reduce", p, 840) == (steps, chunks * 840 / p)
    halves = [terms(name, p, n) for name, n in (("reduce_scatter", 840), ("all_gather", 840 / p))]
    assert [sum(part) for part in zip(*halves, strict=True)] == pytest.approx([steps, chunks * 840 / p])


def test_doubling_takes_few_steps_and_many_bytes():
    assert terms("all_reduce", 1024, 100, "doubling") == (10, 1000.0)
    assert terms("all_reduce", 5, 100, "doubling")[0] == 3
    link = Link(alpha=1e-5, beta=1e-9)
    for n in (4, 1 << 30):
        both = [link.seconds("all_reduce", 1024, n, name) for name in ("ring", "doubling")]
        assert link.seconds("all_reduce", 1024, n, "best") == min(both)
    assert link.seconds("all_reduce", 1024, 4, "ring") > link.seconds("all_reduce", 1024, 4, "doubling")
    assert link.seconds("all_reduce", 1024, 1 << 30, "ring") < link.seconds(
        "all_reduce", 1024, 1 << 30, "doubling"
    )


@pytest.mark.parametrize("world", [2, 4, 16])
def test_planted_constants_are_found_again(world):
    planted, sizes, draw = Link(4e-5, 2e-9), [128, 4096, 131072, 2097152], random.Random(0)
    exact = [planted.seconds("all_reduce", world, n) for n in sizes]
    found = fit_link(sizes, exact, world)
    assert (found.found.alpha, found.found.beta) == pytest.approx((4e-5, 2e-9)) and found.worst < 1e-9
    noisy = fit_link(sizes, [t * draw.uniform(0.9, 1.1) for t in exact], world)
    assert (noisy.found.alpha, noisy.found.beta) == pytest.approx((4e-5, 2e-9), rel=0.2)
    assert 0 < noisy.worst < 0.25  # what does not fit is said


def test_a_fit_never_finds_a_constant_below_zero():
    falling = fit_link([100, 1000, 10000], [3e-5, 2e-5, 1e-5], 2)
    assert falling.found.beta == 0 and falling.found.alpha > 0 and falling.worst > 0.3
    bent = fit_link([1000, 10000, 100000], [1e-6, 1e-5, 2e-4], 2)
    assert bent.found.alpha == 0 and bent.found.beta > 0


def test_work_is_an_overhead_and_a_rate():
    planted = Compute(1e-3, 2e10)
    flops = [4e8, 2e8, 5e7, 8e5]
    assert fit_compute(flops, [planted.seconds(f) for f in flops]).found == Compute(1e-3, 2e10, "fitted")
    with pytest.raises(ValueError, match="more work took no more time here"):
        fit_compute([1e6, 2e6], [2e-3, 1e-3])


def test_a_step_adds_up_and_crowding_slows_the_work_only():
    work, link = Compute(1e-3, 1e9), Link(1e-4, 1e-9)
    alone = step(work, link, 4, 2e6, [1000, 1000])
    crowded = step(work, link, 4, 2e6, [1000, 1000], crowding=2)
    assert alone.compute == pytest.approx(3e-3) and crowded.compute == pytest.approx(6e-3)
    assert alone.communication == crowded.communication == pytest.approx(2 * (6e-4 + 1.5e-6))
    assert alone.share == pytest.approx(alone.communication / alone.seconds)
    assert (
        step(work, link, 4, 2e6, [], crowding=0.5).compute == alone.compute
    )  # spare cores make nothing faster
    one = step(work, link, 1, 2e6, [1000])
    assert one.communication == 0 and one.share == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: terms("broadcast", 2, 4), "no cost is known of 'broadcast'"),
        (lambda: terms("all_reduce", 0, 4), "world_size must be a whole number of at least 1, got 0"),
        (lambda: terms("all_reduce", 2.0, 4), "world_size must be a whole number"),
        (lambda: terms("all_reduce", 2, -1), "bytes must be a finite number of 0 or more, got -1"),
        (lambda: terms("all_reduce", 2, 4, "tree"), "unknown algorithm 'tree': there is ring and doubling"),
        (lambda: terms("all_gather", 2, 4, "doubling"), "stated for all_reduce here, not for all_gather"),
        (lambda: Link(float("nan"), 0), "alpha must be a finite number"),
        (lambda: Link(0, float("inf")), "beta must be a finite number"),
        (lambda: Link(True, 0), "alpha must be a finite number"),
        (lambda: Compute(-1e-6, 1e9), "overhead must be a finite number of 0 or more"),
        (lambda: Compute(0, 0), "rate must be a finite number above 0, got 0"),
        (lambda: fit_link([4], [1e-5], 2), "two sizes or more"),
        (lambda: fit_link([4, 4], [1e-5, 1e-5], 2), "two sizes or more"),
        (lambda: fit_link([4, 8], [1e-5, 0], 2), "a time must be a finite number above 0"),
        (lambda: fit_link([4, 8], [1e-5, 2e-5], 1), "world_size must be a whole number of at least 2"),
        (lambda: step(Compute(0, 1), Link(0, 0), 2, 1, [], algorithm="x"), "unknown algorithm 'x'"),
    ],
)
def test_what_is_no_constant_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_link_without_a_price_for_bytes_has_no_end():
    assert Link(0, 0).gbytes_per_s == float("inf") and costs.Link(0, 4e-11).gbytes_per_s == pytest.approx(25)

"""The verdict rule: no difference out of noise, a real one found, whatever the distribution."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.timing import Measurement, Verdict, compare, interleave, median_interval, quantile


def noisy(seed: int, factor: float = 1.0, n: int = 40) -> Measurement:
    """Skewed samples with outliers, as timings are."""
    draw = random.Random(seed)
    return Measurement("x", tuple(factor * (0.010 + draw.lognormvariate(-8, 0.6)) for _ in range(n)))


def test_the_same_thing_twice_cannot_be_told_apart():
    outcomes = [compare(noisy(seed), noisy(seed + 10_000)).outcome for seed in range(200)]
    # the interval covers at 99 %: of 200, two are expected to stray, and eight would be a broken rule
    assert outcomes.count("cannot tell") >= 192


def test_a_planted_ten_percent_is_found():
    outcomes = [compare(noisy(seed, 1.1), noisy(seed + 10_000)).outcome for seed in range(50)]
    assert outcomes.count("slower") >= 48 and "faster" not in outcomes


def test_a_drift_common_to_both_cancels_out():
    drift = [1 + i / 10 for i in range(30)]
    slow = Measurement("slow", tuple(0.0115 * d for d in drift))
    quick = Measurement("quick", tuple(0.0100 * d for d in drift))
    verdict = compare(slow, quick)
    assert verdict.outcome == "slower" and math.isclose(verdict.ratio, 1.15)


def test_too_few_rounds_cannot_tell_even_when_far_apart():
    verdict = compare(Measurement("a", (1.0,) * 5), Measurement("b", (9.0,) * 5))
    assert verdict.outcome == "cannot tell" and verdict.high == math.inf


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_the_interval_holds_the_median(samples):
    low, high = median_interval(samples)
    assert low <= quantile(samples, 0.5) <= high


@pytest.mark.parametrize("n", [9, 20, 31])
def test_the_interval_has_the_stated_coverage(n):
    draw = random.Random(n)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.random() for _ in range(n)])
        hits += low <= 0.5 <= high
    assert hits / 2000 >= 0.98


def test_rounds_are_interleaved_and_no_variant_always_comes_first():
    order = []
    now = iter(range(1000))
    taken = interleave(
        {name: (lambda name=name: order.append(name)) for name in "abc"},
        rounds=3,
        warmup=1,
        barrier=lambda: order.append("|"),
        clock=lambda: float(next(now)),
    )
    assert "".join(order) == "abc" + "|a|b|c" + "|b|c|a" + "|c|a|b"
    assert all(m.samples == (1.0, 1.0, 1.0) for m in taken.values())


def test_the_collector_is_off_while_timing_and_back_on_after_an_error():
    import gc

    seen = []
    interleave({"a": lambda: seen.append(gc.isenabled())}, rounds=1, warmup=0)
    assert seen == [False]

    def fail():
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        interleave({"a": fail}, rounds=1, warmup=0)
    assert gc.isenabled()


def test_bad_requests():
    with pytest.raises(ValueError, match="nothing to time"):
        interleave({})
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        interleave({"a": int}, rounds=0)
    with pytest.raises(ValueError, match="no samples"):
        Measurement("empty", ())
    with pytest.raises(ValueError, match="'a' has 2 rounds and 'b' has 3"):
        compare(Measurement("a", (1.0, 1.0)), Measurement("b", (1.0, 1.0, 1.0)))


def test_a_verdict_survives_its_dictionary():
    verdict = compare(noisy(1, 2.0), noisy(2))
    assert Verdict.from_dict(verdict.to_dict()) == verdict
    assert verdict.to_dict()["outcome"] == "slower"

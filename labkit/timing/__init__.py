"""Timing: interleaved rounds, medians with a spread, and a verdict only where the interval lies on one side of 1.

This is the one statistics core of labkit. Its rule:

1. Variants are timed in the same rounds, in an order that is drawn anew for each (the same on all ranks), with the
   garbage collector off and a barrier of the group before each. On ranks a round's time is that of its slowest rank.
2. Two variants are compared round by round: the ratio of their two times in a round, so that a machine that slows
   down for both cancels out. The figure is the median of these ratios.
3. Its interval, at 99 %, is the wider one of two: the exact one by order statistics (`median_interval`), which assumes
   nothing about the distribution and needs at least eight rounds; and a circular block bootstrap of the rounds
   (`bootstrap_interval`; Politis and Romano, 1992), which moves pairs together and keeps neighbours together, because a
   busy machine stays busy for several rounds. Simulated, the two hold the true median in 99.5 % of runs with
   independent rounds and in about 92 % where neighbours are correlated at 0.6.
4. No interval covers noise that its rounds did not have, so there is also a noise floor: the same variant A is timed
   twice in the same rounds, and `Times.noise_floor` says how far the two are apart. A verdict says *faster* or *slower*
   only where the whole interval lies beyond 1 and beyond that floor. Everything else is "cannot tell". With fewer than
   eight rounds the interval has no ends.

A time is a finite number of seconds, not negative; anything else is refused where it comes in, as are comparisons of
different numbers of rounds and verdicts on a single round.
"""

from __future__ import annotations

from labkit.timing.times import Times, check_rounds, interleave
from labkit.timing.verdicts import Verdict, wider_interval

__all__ = ["Times", "Verdict", "check_rounds", "interleave", "wider_interval"]

"""When can communication be hidden? Arithmetic on what a reader states of a machine: nothing here is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Condition", "condition"]


@dataclass(frozen=True)
class Condition:
    """Times in seconds, worked out from stated rates. `hidden` is the share that can be hidden at the very best."""

    communication: float
    compute: float

    @property
    def hidden(self) -> float:
        """The share of the communication that fits behind the computation, 0 to 1."""
        return min(1.0, self.compute / self.communication) if self.communication else 1.0

    @property
    def exposed(self) -> float:
        """Seconds of communication that are left over at best."""
        return max(0.0, self.communication - self.compute)

    @property
    def speedup(self) -> float:
        """The most that overlap can gain: time in sequence over the time of the longer part."""
        longer = max(self.communication, self.compute)
        return (self.communication + self.compute) / longer if longer else 1.0


def condition(
    size: float, bandwidth: float, work: float, rate: float, *, ranks: int = 2, latency: float = 0.0
) -> Condition:
    """The condition of a ring all-reduce of `size` bytes beside `work` flops.

    bandwidth: bytes a second that a rank can send; rate: flops a second; latency: seconds a step. A ring sends
    2 (n - 1) / n of the bytes in 2 (n - 1) steps. It holds, everything is hidden, where work / rate is at least that
    long. Raises ValueError naming what is not a number above 0 (work, size and latency may be 0).

    >>> found = condition(size=64e6, bandwidth=25e9, work=2e12, rate=400e12)
    >>> found.communication, found.compute, found.hidden
    (0.00256, 0.005, 1.0)
    """
    given = {"size": size, "bandwidth": bandwidth, "work": work, "rate": rate, "latency": latency}
    for name, value in given.items():
        least = 0 if name in ("size", "work", "latency") else math.ulp(0.0)
        if not isinstance(value, (int, float)) or not least <= value < math.inf:
            raise ValueError(
                f"{name} must be a number {'of 0 or more' if not least else 'above 0'}, got {value!r}"
            )
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"ranks must be a whole number of 1 or more, got {ranks!r}")
    steps = 2 * (ranks - 1)
    return Condition(steps / ranks * size / bandwidth + steps * latency, work / rate)

"""Warmup in lockstep: the same calls on every rank until nobody compiles any more, then the gate.

Enforces topic 12's "Warmup protocol": through the path of inference, with the shapes and flags that will be served, in
lockstep, with the compile health gathered and compared after it. After that,
`torch.compiler.set_stance("fail_on_recompile")` makes any further recompile an error.
What needs no peer (loading caches, building, compiling ahead) goes into `prepare`: a slow rank is waited for there,
outside of every collective, and not by a peer that is in one. A `budget` makes a warmup that takes too long an error.

To copy it takes exchange.py and health.py, and with that labkit's torch_compat: it is not standalone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labkit.contract.exchange import ContractError, Exchange
from labkit.contract.health import Health, assert_same_health, compile_health

__all__ = ["NotSteady", "OverBudget", "Warm", "warm_up"]


class NotSteady(ContractError):
    """Every round of the warmup still compiled something."""


class OverBudget(ContractError):
    """The warmup took longer than it may."""


@dataclass(frozen=True)
class Warm:
    """How the warmup went.

    Args:
        rounds: The number of rounds.
        seconds: This rank's seconds for each round.
        health: What was compiled in all of them.
        prepared: Every rank's seconds of `prepare`, by rank.
        total: The seconds from beginning to end of the slowest rank.
    """

    rounds: int
    seconds: tuple[float, ...]
    health: Health
    prepared: dict[int, float] = field(default_factory=dict)
    total: float = 0.0

    @property
    def skew(self) -> float:
        """The seconds that the first prepared rank waits for the last, here and not in a collective."""
        return max(self.prepared.values(), default=0.0) - min(self.prepared.values(), default=0.0)


def warm_up(
    exchange: Exchange,
    call: Callable[[], Any],
    rounds: int = 5,
    timeout: float = 600.0,
    place: Callable[[str, int], str] | None = None,
    gate: bool = True,
    prepare: Callable[[], Any] | None = None,
    budget: float | None = None,
) -> Warm:
    """Call `call()` on every rank, round by round, until a round in which no rank compiled anything.

    Args:
        exchange: How the ranks tell each other values.
        call: The very function that serves, with fixed shapes and flags. Its plans carry the index -1.
        rounds: The most rounds.
        timeout: How long a rank waits between two rounds for the slowest compile of its peers, in seconds.
        place: As in `compile_health`.
        gate: Compare between ranks what was compiled.
        prepare: Called once on every rank before the first round, without a collective in it. Then all ranks wait for
            the slowest.
        budget: The seconds that preparing and all rounds may take on any rank.

    Returns:
        How the warmup went.

    Raises:
        NotSteady: On all ranks, if the last round still compiled something; it names the failed guard.
        HealthError: On all ranks, if ranks compiled different things.
        OverBudget: On all ranks, naming the slowest.
        ValueError: If `rounds` or `budget` is not positive.

    >>> from labkit.contract.exchange import rehearse
    >>> rehearse(1, lambda exchange: warm_up(exchange, lambda: None).rounds)
    [1]
    """
    if rounds < 1:
        raise ValueError(f"a warmup needs at least one round, got {rounds}")
    if budget is not None and not budget > 0:
        raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
    seconds: list[float] = []
    started, prepared = time.perf_counter(), dict[int, float]()
    with compile_health(place) as health:
        if prepare is not None:
            prepare()
            prepared = exchange.gather("prepared", time.perf_counter() - started, timeout)
        while True:
            before, began = (health.graphs, health.recompiles), time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
            compiled = (health.graphs, health.recompiles) != before
            still = [rank for rank, did in exchange.gather("warmup", compiled, timeout).items() if did]
            if not still or len(seconds) == rounds:
                break
    if gate:
        assert_same_health(exchange, health)
    if still:
        who = f"rank{'s' * (len(still) > 1)} {', '.join(map(str, still))}"
        why = f": {health.guards[-1]}" if health.guards else ""
        raise NotSteady(f"after {rounds} rounds of warmup {who} still compiled{why}")
    totals = exchange.gather("warm", time.perf_counter() - started, timeout)
    rank = max(totals, key=lambda r: prepared.get(r, 0.0) or totals[r])
    if budget is not None and max(totals.values()) > budget:
        part = f", {prepared[rank]:.1f} s of them on preparing" if prepared else ""
        raise OverBudget(
            f"the warmup took {max(totals.values()):.1f} s and may take {budget:g} s; rank {rank} took longest{part}"
        )
    return Warm(len(seconds), tuple(seconds), health, prepared, max(totals.values()))

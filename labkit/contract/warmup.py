"""Warmup in lockstep: the same calls on every rank until nobody compiles any more, then the gate.

Enforces topic 12's "Warmup protocol": through the path of inference, with the shapes and flags that will be served, in
lockstep, with the compile health gathered and compared after it; `sealed` then makes any further recompile an error.

To copy it takes exchange.py and health.py, and with that labkit's torch_compat.py: it is not standalone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from labkit.contract.exchange import ContractError, Exchange
from labkit.contract.health import Health, assert_same_health, compile_health

__all__ = ["NotSteady", "Warm", "sealed", "warm_up"]


class NotSteady(ContractError):
    """Every round of the warmup still compiled something."""


@dataclass(frozen=True)
class Warm:
    """How the warmup went: rounds that were run, this rank's seconds for each, and what was compiled in all of them."""

    rounds: int
    seconds: tuple[float, ...]
    health: Health


def warm_up(
    exchange: Exchange,
    call: Callable[[], Any],
    rounds: int = 5,
    timeout: float = 600.0,
    place: Callable[[str, int], str] | None = None,
    gate: bool = True,
) -> Warm:
    """Call `call()` on every rank, round by round, until a round in which no rank compiled anything.

    call: the very function that serves, with fixed shapes and flags; its plans carry the index -1. timeout (seconds)
    is how long a rank waits for the slowest compile of its peers between two rounds. `gate=False` leaves out the
    comparison of what was compiled. Raises NotSteady where `rounds` were not enough, naming the failed guards, and
    HealthError where ranks compiled different things.

    >>> from labkit.contract.exchange import rehearse
    >>> rehearse(1, lambda exchange: warm_up(exchange, lambda: None).rounds)
    [1]
    """
    if rounds < 1:
        raise ValueError(f"a warmup needs at least one round, got {rounds}")
    seconds: list[float] = []
    with compile_health(place) as health:
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
    return Warm(len(seconds), tuple(seconds), health)


@contextlib.contextmanager
def sealed() -> Iterator[None]:
    """After the warmup: a recompile raises, instead of a rank compiling while its peers wait in a collective.

    It is `torch.compiler.set_stance("fail_on_recompile")`, for a block.

    >>> import torch
    >>> compiled = torch.compile(lambda x: x + x, backend="eager")
    >>> _ = compiled(torch.ones(2))
    >>> with sealed():
    ...     _ = compiled(torch.ones(2))
    """
    import torch

    with torch.compiler.set_stance("fail_on_recompile"):
        yield

"""A contract whose parts can be switched on and off one by one, for drills that leave one of them out.

A project needs no more than the parts themselves. This holds them in the order in which a call meets them: settings at
start-up, then for each call its plan, its inputs, its steps, and after compiling its health.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from labkit.contract.drift import Fingerprints, InputDigests
from labkit.contract.exchange import Exchange
from labkit.contract.health import Health, assert_same_health, compile_health
from labkit.contract.parity import assert_parity
from labkit.contract.plan import Plan, Run, agree

__all__ = ["PARTS", "Contract"]

PARTS = ("parity", "plan", "digests", "fingerprints", "health")


class Contract:
    """The checks of one program, of which only some are on. Parts that are off do nothing and cost nothing.

    Args:
        exchange: How the ranks tell each other values.
        on: The parts that are on, out of `PARTS`; the same on every rank. Parity compares them like any other setting.
        place: A function from a file and a line to the text of a place; without it, the file's name and the line.

    Raises:
        ValueError: For a part that does not exist.

    >>> from labkit.contract.exchange import rehearse
    >>> def program(exchange, on):
    ...     contract = Contract(exchange, on)
    ...     contract.settings(attention="flash" if exchange.rank else "triton")
    ...     return "ran"
    >>> rehearse(2, lambda exchange: program(exchange, on=()))
    ['ran', 'ran']
    >>> [type(found).__name__ for found in rehearse(2, lambda exchange: program(exchange, on=["parity"]))]
    ['ParityError', 'ParityError']
    """

    def __init__(
        self, exchange: Exchange, on: Iterable[str] = PARTS, place: Callable[[str, int], str] | None = None
    ) -> None:
        self.exchange, self.on, self.rank, self.place = exchange, frozenset(on), exchange.rank, place
        unknown = self.on - set(PARTS)
        if unknown:
            raise ValueError(
                f"no part {', '.join(sorted(unknown))} of the contract: there is {', '.join(PARTS)}"
            )

    def settings(self, **values: Any) -> None:
        """Compare settings between ranks. Raises ParityError."""
        if "parity" in self.on:
            assert_parity(self.exchange, {**values, "parts of the contract": ", ".join(sorted(self.on))})

    def inputs(self, index: int = 0, /, **tensors: Any) -> None:
        """Compare this call's inputs bit by bit. Raises DigestError."""
        if "digests" in self.on:
            InputDigests(self.exchange).check(index, **tensors)

    def watch(self, tensors: Mapping[str, Any], replicated: Iterable[str] = ()) -> Callable[[], None]:
        """Remember weights; what is returned raises FingerprintError on every rank once one has changed."""
        if "fingerprints" not in self.on:
            return lambda: None
        return Fingerprints(self.exchange, tensors, replicated).check

    @contextlib.contextmanager
    def call(self, plan: Plan) -> Iterator[Run | _Free]:
        """Agree on a call, then count its steps. Raises PlanError."""
        if "plan" not in self.on:
            yield _Free()
            return
        agree(self.exchange, plan)
        run = Run(plan, self.exchange)
        yield run
        run.end()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[Health | None]:
        """Watch what a block compiles, and compare it between ranks when the block ends. Raises HealthError."""
        if "health" not in self.on:
            yield None
            return
        with compile_health(self.place) as health:
            yield health
        assert_same_health(self.exchange, health)


class _Free:
    """A run whose steps nobody counts."""

    def step(self, name: str = "call") -> None:
        """Nothing is planned, so nothing is wrong."""

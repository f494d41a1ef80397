"""The plan of one call, agreed before it runs: action, shapes, optional phases and the number of calls.

Enforces, of topic 12's table "Rank-parity invariants", the column *per call*: `action` (Topology), epochs (Pipeline
identity), planned warmup (Compile mode), and everything that changes the number of calls (Optional phases); and of its
code-review contract, that observed calls equal expected ones. Copy this file and exchange.py; they need only torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.contract.exchange import ContractError, Exchange, by_rank, differences

__all__ = ["WARMUP", "Plan", "PlanError", "Run", "agree", "announce", "executing"]

WARMUP = -1  # the index of a call that serves nobody


class PlanError(ContractError):
    """Ranks plan different calls, or one did something else than planned."""


@dataclass(frozen=True)
class Plan:
    """One call as every rank has to run it.

    Args:
        action: What to do, such as 'infer', 'noop', 'shutdown'.
        tensors: What is sent, as text by name: '(2, 8) float32'.
        phases: Optional phases and whatever else changes the call graph, by name.
        calls: The names of the calls that will be made, in order.
        epochs: The epochs of caches and control, where they are used.
        index: The number of this call; -1 is a warmup.
    """

    action: str
    tensors: dict[str, str] = field(default_factory=dict)
    phases: dict[str, Any] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    epochs: dict[str, int] = field(default_factory=dict)
    index: int = 0

    @classmethod
    def of(
        cls,
        action: str,
        tensors: Mapping[str, Any] | None = None,
        calls: int | Sequence[str] = (),
        phases: Mapping[str, Any] | None = None,
        epochs: Mapping[str, int] | None = None,
        index: int = 0,
    ) -> Plan:
        """Make a plan from live tensors, and from a number of calls or their names.

        Raises:
            ValueError: For a negative number of calls.

        >>> import torch
        >>> plan = Plan.of("infer", {"x": torch.ones(2, 8)}, calls=2, phases={"recompute": False})
        >>> plan.tensors, plan.calls
        ({'x': '(2, 8) float32'}, ('call', 'call'))
        """
        if isinstance(calls, int):
            if calls < 0:
                raise ValueError(f"a plan cannot have {calls} calls")
            calls = ("call",) * calls
        return cls(
            action, described(tensors or {}), dict(phases or {}), tuple(calls), dict(epochs or {}), index
        )

    @property
    def warmup(self) -> bool:
        """Whether this call only warms up."""
        return self.index == WARMUP

    def wire(self) -> dict[str, Any]:
        """Return the plan as what JSON can hold."""
        return {**asdict(self), "calls": list(self.calls)}

    @classmethod
    def unwire(cls, said: Mapping[str, Any]) -> Plan:
        """Make a plan from what `wire` returned."""
        return cls(**{**said, "calls": tuple(said["calls"])})


def described(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Return each tensor's shape and dtype as text."""
    return {name: f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in tensors.items()}


def agree(exchange: Exchange, mine: Plan) -> Plan:
    """Check that all ranks plan the same call before any of them runs it.

    This is for ranks that each derive the call from what they hold.

    Returns:
        The plan, where all agree.

    Raises:
        PlanError: On every rank, naming each field that differs with each rank's value.

    >>> from labkit.contract.exchange import rehearse
    >>> print(rehearse(2, lambda exchange: agree(exchange, Plan.of("infer", calls=2 - exchange.rank)))[0])
    the ranks plan different calls:
        number of calls: rank 0 2, rank 1 1
    """
    every = {rank: Plan.unwire(said) for rank, said in exchange.gather("plan", mine.wire()).items()}
    differs = differences({rank: _facts(plan) for rank, plan in every.items()})
    if differs:
        lines = [f"    {name}: {by_rank(values)}" for name, values in differs.items()]
        raise PlanError("\n".join(["the ranks plan different calls:", *lines]))
    return mine


def announce(exchange: Exchange, plan: Plan | None = None, leader: int = 0) -> Plan:
    """Send the leader's plan to every rank. Workers follow it, and derive nothing of their own.

    Args:
        exchange: How the ranks tell each other values.
        plan: The plan on the leader, None on every other rank.
        leader: The leader's rank.

    Returns:
        The leader's plan, on every rank.

    Raises:
        PlanError: If the leader gave no plan, or another rank gave one.
        ValueError: If the leader is not in the exchange.

    >>> from labkit.contract.exchange import rehearse
    >>> plans = rehearse(2, lambda exchange: announce(exchange, None if exchange.rank else Plan("shutdown")))
    >>> [plan.action for plan in plans]
    ['shutdown', 'shutdown']
    """
    every = exchange.gather("announced plan", None if plan is None else plan.wire())
    if leader not in every:
        raise ValueError(f"the leader, rank {leader}, is not in this exchange")
    given = [rank for rank, said in every.items() if said is not None]
    if given != [leader]:
        raise PlanError(f"rank {leader} leads and has to give the plan; it was given by {given or 'no rank'}")
    return Plan.unwire(every[leader])


class Run:
    """Counts the calls of a plan as they are made. `seen` is how many were made."""

    def __init__(self, plan: Plan, exchange: Exchange | None = None) -> None:
        self.plan, self.exchange, self.seen = plan, exchange, 0

    def step(self, name: str = "call") -> None:
        """Announce the next call. This stands before the call, so that an unplanned one is never made.

        Raises:
            PlanError: For a call too many, or another one than planned. Peers that wait in an exchange get an error.

        >>> run = Run(Plan.of("infer", calls=["encode", "decode"]))
        >>> run.step("encode")
        >>> run.step("encode")
        Traceback (most recent call last):
        labkit.contract.plan.PlanError: call 2 is 'encode', planned was 'decode'
        """
        planned = self.plan.calls
        if self.seen >= len(planned):
            self._broken(f"call {self.seen + 1} is {name!r}, planned were {len(planned)} calls")
        if planned[self.seen] != name:
            self._broken(f"call {self.seen + 1} is {name!r}, planned was {planned[self.seen]!r}")
        self.seen += 1

    def end(self) -> None:
        """Check that every planned call was made.

        Raises:
            PlanError: If calls are missing.
        """
        if self.seen != len(self.plan.calls):
            self._broken(f"{self.seen} calls were made, planned were {len(self.plan.calls)}")

    def _broken(self, said: str) -> None:
        if self.exchange is not None:
            said = f"rank {self.exchange.rank}: {said}"
            self.exchange.fail(said)
        raise PlanError(said)


@contextlib.contextmanager
def executing(plan: Plan, exchange: Exchange | None = None) -> Iterator[Run]:
    """Count the calls in a block against the plan. An exception in the block passes through unchanged.

    Raises:
        PlanError: On the rank that makes more, fewer or other calls than planned.

    >>> with executing(Plan.of("infer", calls=2)) as run:
    ...     run.step()
    Traceback (most recent call last):
    labkit.contract.plan.PlanError: 1 calls were made, planned were 2
    """
    run = Run(plan, exchange)
    yield run
    run.end()


def _facts(plan: Plan) -> dict[str, str]:
    found = {"action": plan.action, "index": str(plan.index), "number of calls": str(len(plan.calls))}
    found |= {f"tensor {name}": said for name, said in plan.tensors.items()}
    found |= {f"phase {name}": repr(value) for name, value in plan.phases.items()}
    found |= {f"epoch {name}": str(value) for name, value in plan.epochs.items()}
    return found | {f"call {i}": name for i, name in enumerate(plan.calls, 1) if name != "call"}

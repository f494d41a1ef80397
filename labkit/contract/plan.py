"""The plan of one call: what it does, with which shapes, which optional phases and how many calls, said before it runs.

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
    """Ranks are about to do different things, or did something else than planned."""


@dataclass(frozen=True)
class Plan:
    """One call as every rank has to run it.

    action: such as 'infer', 'noop', 'shutdown'. tensors: what is sent, as text by name ('(2, 8) float32').
    phases: optional phases and what else changes the call graph, by name. calls: the calls that will be made, by name
    and in order. epochs: of caches and control, where they are used. index: which call this is; -1 is a warmup.
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
        """A plan from live tensors and a number of calls. Raises ValueError for a negative number.

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
        """The plan as what JSON can hold."""
        return {**asdict(self), "calls": list(self.calls)}

    @classmethod
    def unwire(cls, said: Mapping[str, Any]) -> Plan:
        """A plan out of what `wire` gave."""
        return cls(**{**said, "calls": tuple(said["calls"])})


def described(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Shape and dtype of each tensor, as text."""
    return {name: f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in tensors.items()}


def agree(exchange: Exchange, mine: Plan) -> Plan:
    """Compare what every rank is about to do, before any of them does it; returns the plan where all agree.

    For ranks that each derive the call from what they hold. Raises PlanError on every rank, naming each field with
    each rank's value.

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
    """The leader's plan on every rank: workers follow it, and derive nothing of their own.

    Only the leader gives a plan. Raises PlanError where the leader gave none or another rank gave one.

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
    """The calls of a plan as they are made. `seen` is how many were made."""

    def __init__(self, plan: Plan, exchange: Exchange | None = None) -> None:
        self.plan, self.exchange, self.seen = plan, exchange, 0

    def step(self, name: str = "call") -> None:
        """Say that the next call is made now: put it before the call, so that an unplanned one is never made.

        Raises PlanError for one call too many, or another one than planned; peers that wait in an exchange hear of it.

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
        """Check that every planned call was made. Raises PlanError."""
        if self.seen != len(self.plan.calls):
            self._broken(f"{self.seen} calls were made, planned were {len(self.plan.calls)}")

    def _broken(self, said: str) -> None:
        if self.exchange is not None:
            said = f"rank {self.exchange.rank}: {said}"
            self.exchange.fail(said)
        raise PlanError(said)


@contextlib.contextmanager
def executing(plan: Plan, exchange: Exchange | None = None) -> Iterator[Run]:
    """The calls of a plan, counted: more, fewer or other ones than planned raise PlanError on the rank that makes them.

    An exception in the block passes through unchanged.

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

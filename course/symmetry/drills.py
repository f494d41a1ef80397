"""Programs in which one rank goes its own way, each in another manner; whole, they are ordinary small programs.

A drill is a function of a `Site`: its contract, with every place at which a real program would deal with it. Rank 1
(the last one) misbehaves where `site.odd` says so; without, all ranks do the same. A drill that rests on a sleep or a
short timeout has them as fields, and a `control` without the short timeout. Sources: topic 12, experiment 2, and its
gotchas; what gloo makes of each was found by running them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit import places
from labkit.contract import (
    Exchange,
    InputDigests,
    Plan,
    Run,
    agree,
    assert_parity,
    assert_same_health,
    compile_health,
)
from labkit.torch_compat import funcol

__all__ = ["DRILLS", "Recompile", "Site", "what"]

Drill = Callable[["Site"], Any]


class Site:
    """The places at which a program deals with its contract; only the parts that are on do anything.

    Args:
        exchange: How the ranks tell each other values.
        on: The parts that are on, out of `PARTS`; the same on every rank.
        odd: Whether this rank goes its own way.

    Attributes:
        met: The parts that the program has dealt with.

    >>> from labkit.contract import rehearse
    >>> def program(site):
    ...     site.settings(attention="flash" if site.odd else "triton")
    ...     return "ran"
    >>> rehearse(2, lambda exchange: program(Site(exchange, (), exchange.rank == 1)))
    ['ran', 'ran']
    >>> found = rehearse(2, lambda exchange: program(Site(exchange, ["parity"], exchange.rank == 1)))
    >>> [type(one).__name__ for one in found]
    ['ParityError', 'ParityError']
    """

    def __init__(self, exchange: Exchange, on: Iterable[str], odd: bool) -> None:
        self.exchange, self.on, self.odd = exchange, frozenset(on), odd
        self.met: set[str] = set()

    def _meets(self, part: str) -> bool:
        self.met.add(part)
        return part in self.on

    def settings(self, **values: Any) -> None:
        """Compare settings between ranks. Raises ParityError."""
        if self._meets("parity"):
            assert_parity(self.exchange, values)

    def inputs(self, **tensors: Any) -> None:
        """Compare this call's inputs bit by bit. Raises DigestError."""
        if self._meets("digests"):
            InputDigests(self.exchange).check(0, **tensors)

    @contextlib.contextmanager
    def call(self, plan: Plan) -> Iterator[Callable[..., None]]:
        """Agree on a call, then count its steps with the function that this yields. Raises PlanError."""
        if not self._meets("plan"):
            yield lambda name="call": None
            return
        agree(self.exchange, plan)
        run = Run(plan, self.exchange)
        yield run.step
        run.end()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Watch what a block compiles, and compare it between ranks when the block ends. Raises HealthError."""
        if not self._meets("health"):
            yield
            return
        with compile_health(places.place) as health:
            yield
        assert_same_health(self.exchange, health)


def _reduced(site: Site, x: Any, op: Any = dist.ReduceOp.SUM, calls: int = 1, **planned: Any) -> Any:
    """Plan a call, compare its input, and all-reduce it as often as planned."""
    with site.call(Plan.of("infer", {"x": x}, calls=calls, **planned)) as step:
        site.inputs(x=x)
        for _ in range(calls):
            step()
            dist.all_reduce(x, op)
    return x.tolist()


def shape(site: Site) -> Any:
    """Rank 1 has the same matrix, the other way round: as many elements, in another order."""
    x = torch.arange(6.0).reshape(2, 3)
    if site.odd:
        x = x.t().contiguous()
    return _reduced(site, x)


def size(site: Site) -> Any:
    """Rank 1 has two elements more."""
    return _reduced(site, torch.ones(6 if site.odd else 4))


def dtype(site: Site) -> Any:
    """Rank 1 has integers."""
    return _reduced(site, torch.ones(4, dtype=torch.int32 if site.odd else torch.float32))


def flag(site: Site) -> Any:
    """A switch that is set on rank 1 only adds an optional phase, with a collective of its own."""
    recompute = site.odd  # such as an environment variable that one host has
    site.settings(kv_recompute=recompute)
    return _reduced(site, torch.ones(4), calls=1 + recompute, phases={"kv_recompute": recompute})


def backend(site: Site) -> Any:
    """'auto' becomes another kernel on rank 1, one that combines by maximum and not by sum."""
    chosen = "paged" if site.odd else "flash"
    site.settings(attention="auto", attention_in_effect=chosen)
    return _reduced(
        site, torch.arange(4.0) + 1, dist.ReduceOp.MAX if chosen == "paged" else dist.ReduceOp.SUM
    )


def branch(site: Site) -> Any:
    """A compiled function has an `if` on the values of a shard, and rank 1 holds other values."""

    def program(x):
        if x.sum() > 0:
            x = funcol.all_reduce(x, "sum", dist.group.WORLD)
        return funcol.all_reduce(x + 1, "sum", dist.group.WORLD)

    shard = -torch.ones(4) if site.odd else torch.ones(4)  # of its own on every rank: no input to compare
    with site.call(Plan.of("infer", {"shard": shard}, calls=1)) as step, site.compiling(), torch.no_grad():
        step()
        return (torch.compile(program, backend="eager")(shard) + 0).tolist()


def count(site: Site) -> Any:
    """Rank 1 runs one layer fewer."""
    return _reduced(site, torch.ones(4), calls=2 if site.odd else 3)


def order(site: Site) -> Any:
    """Rank 1 reduces the same two tensors in the other order."""
    q, k = torch.ones(4), torch.ones(4) * 10
    todo = [("q", q), ("k", k)]
    if site.odd:
        todo.reverse()
    with site.call(Plan.of("infer", {"q": q, "k": k}, calls=[name for name, _ in todo])) as step:
        site.inputs(q=q, k=k)
        for name, x in todo:
            step(name)
            dist.all_reduce(x)
    return [q.tolist(), k.tolist()]


def inputs(site: Site) -> Any:
    """Rank 1 was given another batch, of the same shape."""
    return _reduced(site, torch.arange(4.0) + (0.25 if site.odd else 0))


def break_(site: Site) -> Any:
    """Rank 1 prints inside the compiled function, which breaks its graph."""

    def program(x, talk):
        y = funcol.all_reduce(x, "sum", dist.group.WORLD)
        if talk:
            print("", end="")
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD)

    x = torch.ones(4)
    with site.call(Plan.of("infer", {"x": x}, calls=1)) as step, site.compiling(), torch.no_grad():
        site.inputs(x=x)
        step()
        return (torch.compile(program, backend="eager")(x, site.odd) + 0).tolist()


@dataclass(frozen=True)
class Recompile:
    """Rank 1's second call is longer: it compiles again, for longer than its peer's collective waits.

    Two numbers are arranged: every compile after the first sleeps for `sleep_s`, as a large model's takes long, and
    collectives give up after `timeout_s`; None is torch's default.
    """

    sleep_s: float = 2.2
    timeout_s: float | None = 1.0

    @property
    def control(self) -> Recompile:
        """The same drill at torch's default timeout."""
        return replace(self, timeout_s=None)

    def __call__(self, site: Site) -> Any:
        """Run it on a rank."""
        group = dist.new_group(timeout=timedelta(seconds=self.timeout_s) if self.timeout_s else None)
        made: list[Any] = []

        def backend(graph, examples):
            if made:
                time.sleep(self.sleep_s)
            made.append(graph)
            return graph.forward

        def program(x):
            return funcol.all_reduce(x.mean(0), "sum", group)  # ones, however long

        compiled = torch.compile(program, backend=backend)
        with site.compiling(), torch.no_grad():
            for index, rows in enumerate((2, 3 if site.odd else 2)):
                x = torch.ones(rows, 4)  # a shard: as long as this rank's part of the sequence
                dist.barrier()
                with site.call(Plan.of("infer", {"shard": x}, calls=1, index=index)) as step:
                    step()
                    y = (compiled(x) + 0).tolist()
        return y


DRILLS: dict[str, Drill] = {
    **{
        function.__name__.strip("_"): function
        for function in (shape, size, dtype, flag, backend, branch, count, order, inputs, break_)
    },
    "recompile": Recompile(),
}


def what(drill: Drill) -> str:
    """What the odd rank does, in the first sentence of the drill's docstring."""
    return " ".join((drill.__doc__ or "").partition("\n\n")[0].split())

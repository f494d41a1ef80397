"""Nine mistakes with groups, each without a defence, under the check of collectives, and inside a domain's fence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from labkit import places
from labkit.contract import Domain, Exchange
from labkit.lessons.mesh.declared import WRONG_GROUP as ABOUT
from labkit.lessons.mesh.experiment import RANKS, check
from labkit.lessons.shared.options import chosen
from labkit.lessons.shared.outcomes import judge
from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.torch_compat import dynamo_reset, funcol

__all__ = ["DEFENCES", "MISTAKES", "Site", "run"]

NONE, CHECK, DOMAIN = "none", "collective check", "domain"
DEFENCES = (NONE, CHECK, DOMAIN)
STALL_S, TIMEOUT_S, EXCHANGE_S = 1.0, 60.0, 20.0

Mistake = Callable[["Site"], Any]


@dataclass
class Site:
    """Where a program stands: its exchange with the world, whether the mistake is made, and whether it is fenced."""

    world: Exchange
    wrong: bool
    fenced: bool
    mesh: Domain | None = None

    @property
    def rank(self) -> int:
        """This rank, in the world."""
        return self.world.rank

    def group(self, name: str = "mesh", ranks: Sequence[int] = ()) -> Any:
        """A group of ranks 1 and up, or of those given: made by `Domain.define`, or by torch alone."""
        members = list(ranks) or self.world.ranks[1:]
        if not self.fenced:
            return dist.new_group(members)
        found = Domain.define(self.world, name, members, places.place)
        self.mesh = self.mesh or found
        return found.group

    def code(self) -> Any:
        """The block around the mesh's code."""
        return self.mesh.inside() if self.mesh else nullcontext()

    def compile(self, program: Callable[..., Any]) -> Any:
        """The mesh's compiled code."""
        return torch.compile(program, backend=self.mesh.backend("eager") if self.mesh else "eager")


def world_inside(site: Site) -> Any:
    """The mesh's compiled code reduces over the world; rank 0 waits for the result."""
    mesh = site.group()
    x = torch.full((2,), float(site.rank))
    if site.rank == 0:
        dist.recv(x, 1)
        return x.tolist()
    group = dist.group.WORLD if site.wrong else mesh
    with site.code(), torch.no_grad():
        y = site.compile(lambda x: funcol.all_reduce(x * 2, "sum", group))(x) + 0
    if site.rank == 1:
        dist.send(y, 0)
    return y.tolist()


def meets_the_plan(site: Site) -> Any:
    """The mesh's compiled code reduces over the world, while rank 0 announces its next call there."""
    mesh = site.group()
    x, plan = torch.full((2,), float(site.rank)), torch.full((2,), 7.0)
    if site.rank:
        group = dist.group.WORLD if site.wrong else mesh
        with site.code(), torch.no_grad():
            x = site.compile(lambda x: funcol.all_reduce(x * 2, "sum", group))(x) + 0
    dist.broadcast(plan, 0)
    return [*x.tolist(), *plan.tolist()]


def no_group(site: Site) -> Any:
    """A barrier at the end of the mesh's code says no group, which means the world."""
    mesh = site.group()
    x = torch.full((2,), float(site.rank))
    if site.rank == 0:
        dist.recv(x, 1)
        return x.tolist()
    with site.code():
        dist.all_reduce(x, group=mesh)
        dist.barrier(group=None if site.wrong else mesh)
    if site.rank == 1:
        dist.send(x, 0)
    return x.tolist()


def divisor(site: Site) -> Any:
    """A mean in the mesh's code divides by the size of the world."""
    mesh = site.group()
    x = torch.full((2,), float(site.rank))
    if site.rank == 0:
        return x.tolist()
    with site.code():
        dist.all_reduce(x, group=mesh)
        return (x / dist.get_world_size(None if site.wrong else mesh)).tolist()


def joins(site: Site) -> Any:
    """Rank 0 calls the mesh's all-reduce as well, so that it has the sum, too."""
    mesh = site.group()
    x = torch.full((2,), float(site.rank))
    if site.rank or site.wrong:
        with site.code():
            dist.all_reduce(x, group=mesh)
    if not site.wrong and site.rank == 0:
        dist.recv(x, 1)
    elif not site.wrong and site.rank == 1:
        dist.send(x, 0)
    return x.tolist()


def joins_compiled(site: Site) -> Any:
    """Rank 0 runs the mesh's compiled code as well."""
    mesh = site.group()
    x = torch.full((2,), float(site.rank))
    if site.rank or site.wrong:
        with site.code(), torch.no_grad():
            return (site.compile(lambda x: funcol.all_reduce(x, "sum", mesh))(x) + 0).tolist()
    return x.tolist()


def half_made(site: Site) -> Any:
    """Only the mesh's own ranks make its group, and then all ranks make another one."""
    if site.rank or not site.wrong:
        site.group()
    everyone = site.group("everyone", site.world.ranks)
    x = torch.ones(2)
    dist.all_reduce(x, group=everyone)
    return x.tolist()


def wrong_root(site: Site) -> Any:
    """A broadcast in the mesh's code comes from rank 0, which is not in it."""
    mesh = site.group()
    x = torch.full((2,), float(site.rank))
    if site.rank:
        with site.code():
            dist.broadcast(x, 0 if site.wrong else 1, group=mesh)
    return x.tolist()


def stays_away(site: Site) -> Any:
    """All ranks end a call with a sum over the world, outside the mesh's code; rank 0 leaves it out."""
    mesh = site.group()
    x = torch.full((2,), float(site.rank))
    if site.rank:
        with site.code():
            dist.all_reduce(x, group=mesh)
    if site.rank or not site.wrong:
        dist.all_reduce(x)
    return x.tolist()


MISTAKES: dict[str, Mistake] = {
    function.__name__: function
    for function in (
        *(world_inside, meets_the_plan, no_group, divisor),
        *(joins, joins_compiled, half_made, wrong_root, stays_away),
    )
}


def run(
    ranks: Ranks,
    mistake: Sequence[str] = (),
    *,
    mistakes: Mapping[str, Mistake] | None = None,
    stall: float = STALL_S,
    talk: bool = False,
) -> Report:
    """Run every program whole and inside its domain, then with its mistake under each defence, on ranks like `ranks`.

    mistake: names of those to run, all by default. mistakes: further ones by name, as functions of a `Site`. stall
    (seconds): how long ranks wait for each other until that counts as a hang. `outcomes` has a row for each mistake and
    defence: outcome as in `labkit.lessons.symmetry.experiment`, what was said, seconds until it had ended. `whole` says
    what the right programs gave, fenced: nothing may be caught there.

    Raises ValueError for a mistake that does not exist or fewer than three ranks, before anything runs, and
    RuntimeError where a program without its mistake fails.

    >>> with Ranks(3, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, ["joins"])
    >>> dict(zip(report.frame["defence"], report.frame["outcome"]))
    {'none': 'wrong', 'collective check': 'wrong', 'domain': 'caught'}
    """
    check(ranks)
    known = {**MISTAKES, **(mistakes or {})}
    names = chosen(mistake, known, "mistake")
    settings: dict[str, Any] = {"timeout": TIMEOUT_S, "quiet": True, "live": False, "stall": stall}
    rows: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    with (
        Ranks(ranks.world_size, ranks.device, ranks.backend, **settings) as plain,
        Ranks(ranks.world_size, ranks.device, ranks.backend, check="collectives", **settings) as checked,
    ):
        for name in names:
            right = _right(plain, name, known[name])
            whole += [{"mistake": name, "rank": rank, "values": value} for rank, value in enumerate(right)]
            for defence in DEFENCES:
                where = checked if defence == CHECK else plain
                rows.append(_attempt(where, name, known[name], defence, right))
            if talk:
                print(f"{name}: " + ", ".join(f"{r['defence']} {r['outcome']}" for r in rows[-3:]))
    facts = provenance(backend=ranks.backend, device=ranks.device, world_size=ranks.world_size, stall=stall)
    tables = {"outcomes": pd.DataFrame(rows), "whole": pd.DataFrame(whole)}
    notes = [f"{name}: {' '.join((known[name].__doc__ or '').split())}" for name in names]
    view = "labkit.lessons.mesh.figures:mistakes"
    return Report("wrong_group", ABOUT.title, ranks.label, tables, [], facts, notes, view)


def _right(ranks: Ranks, name: str, program: Mistake) -> list[Any]:
    try:
        return list(ranks.run(_play, program, False, True))
    except RankError as error:
        raise RuntimeError(f"{name} fails without its mistake: {error}") from error


def _attempt(ranks: Ranks, name: str, program: Mistake, defence: str, right: list[Any]) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        values = list(ranks.run(_play, program, True, defence == DOMAIN))
        outcome = "right" if values == right else "wrong"
        said = "" if values == right else ", ".join(f"rank {r} has {v}" for r, v in enumerate(values))
    except RankError as error:
        outcome, said = judge(error)
    seconds = round(time.perf_counter() - began, 2)
    return {"drill": name, "defence": defence, "outcome": outcome, "said": said, "seconds": seconds}


def _play(program: Mistake, wrong: bool, fenced: bool) -> Any:
    """On a rank: the program, without torch's warnings, which nobody reads in a log of a thousand ranks."""
    dynamo_reset()
    with quiet_stderr():
        return program(Site(Exchange.connect("wrong-group", timeout=EXCHANGE_S), wrong, fenced))


assert RANKS == 3, "the programs above send from rank 1 to rank 0, and need a rank 2"

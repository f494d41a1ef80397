"""The nine mistakes of lesson 11: without a defence, under the check of collectives, and inside a fence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from labkit import lessons
from labkit.lessons.mesh.declared import WRONG_GROUP as ABOUT
from labkit.lessons.mesh.experiment import check
from labkit.lessons.shared.options import chosen
from labkit.lessons.shared.outcomes import judge
from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.torch_compat import dynamo_reset

__all__ = ["DEFENCES", "MISTAKES", "run"]

program = lessons.program("mesh")
NONE, CHECK, DOMAIN = "none", "collective check", "domain"
DEFENCES = (NONE, CHECK, DOMAIN)
STALL_S, TIMEOUT_S = 1.0, 60.0

Mistake = Callable[[Any, Any], Any]  # of a site and of `pick`
MISTAKES: dict[str, Mistake] = {
    name: getattr(program, name)
    for name in (
        *("world_inside", "meets_the_plan", "no_group", "divisor"),
        *("joins", "joins_compiled", "half_made", "wrong_root", "stays_away"),
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

    Tables: `outcomes` has a row for each mistake and defence: outcome as in `labkit.lessons.symmetry.experiment`, what
    was said, seconds until it had ended. `whole` has what the right programs gave, fenced: nothing may be caught there.

    Args:
        ranks: three or more, on the CPU.
        mistake: names of those to run, all by default.
        mistakes: further ones by name, as functions of a site and of `pick`, as in the cells of the lesson.
        stall: how long ranks wait for each other until that counts as a hang, in seconds.

    Raises:
        ValueError: a mistake that does not exist, or fewer than three ranks; before anything runs.
        RuntimeError: a program without its mistake fails.

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


def _right(ranks: Ranks, name: str, drill: Mistake) -> list[Any]:
    try:
        return list(ranks.run(_play, drill, program.first, True))
    except RankError as error:
        raise RuntimeError(f"{name} fails without its mistake: {error}") from error


def _attempt(ranks: Ranks, name: str, drill: Mistake, defence: str, right: list[Any]) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        values = list(ranks.run(_play, drill, program.second, defence == DOMAIN))
        outcome = "right" if values == right else "wrong"
        said = "" if values == right else ", ".join(f"rank {r} has {v}" for r, v in enumerate(values))
    except RankError as error:
        outcome, said = judge(error)
    seconds = round(time.perf_counter() - began, 2)
    return {"drill": name, "defence": defence, "outcome": outcome, "said": said, "seconds": seconds}


def _play(drill: Mistake, pick: Any, fenced: bool) -> Any:
    """On a rank: the program, without torch's warnings, which nobody reads in a log of a thousand ranks."""
    dynamo_reset()
    with quiet_stderr(), torch.no_grad():
        return drill(program.Fenced() if fenced else program.Plain(), pick)

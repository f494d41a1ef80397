"""The nine mistakes of lesson 11: without a defence, under the check of collectives, and inside a fence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch

from course.mesh.declared import WRONG_GROUP as ABOUT
from course.mesh.experiment import check
from course.shared.options import chosen
from course.shared.outcomes import judge
from course.shared.program import choose as choose_program
from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.torch_compat import dynamo_reset

__all__ = ["DEFENCES", "MISTAKES", "run"]

NONE, CHECK, DOMAIN = "none", "collective check", "domain"
DEFENCES = (NONE, CHECK, DOMAIN)
STALL_S, TIMEOUT_S = 1.0, 60.0

Mistake = Callable[[Any, Any], Any]  # of a site and of `pick`
MISTAKES = (  # names of the program
    *("world_inside", "meets_the_plan", "no_group", "divisor"),
    *("joins", "joins_compiled", "half_made", "wrong_root", "stays_away"),
)
SITES = ("first", "second", "Plain", "Fenced")  # what else is taken of it


def run(
    ranks: Ranks,
    mistake: Sequence[str] = (),
    *,
    program: Any = None,
    stall: float = STALL_S,
    talk: bool = False,
) -> Report:
    """Run every program whole and inside its domain, then with its mistake under each defence, on ranks like `ranks`.

    Tables: `outcomes` has a row for each mistake and defence: outcome as in `course.symmetry.experiment`, what
    was said, seconds until it had ended. `whole` has what the right programs gave, fenced: nothing may be caught there.

    Args:
        ranks: three or more, on the CPU.
        mistake: names of those to run, all by default.
        program: the cells of lesson 11, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.
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
    names = chosen(mistake, MISTAKES, "mistake")
    ours = choose_program("mesh", program, (*SITES, *names))
    known = {name: getattr(ours.code, name) for name in names}
    settings: dict[str, Any] = {"timeout": TIMEOUT_S, "quiet": True, "live": False, "stall": stall}
    rows: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    with (
        Ranks(ranks.world_size, ranks.device, ranks.backend, **settings) as plain,
        Ranks(ranks.world_size, ranks.device, ranks.backend, check="collectives", **settings) as checked,
    ):
        for name in names:
            right = _right(plain, name, known[name], ours.code)
            whole += [{"mistake": name, "rank": rank, "values": value} for rank, value in enumerate(right)]
            for defence in DEFENCES:
                where = checked if defence == CHECK else plain
                rows.append(_attempt(where, name, known[name], ours.code, defence, right))
            if talk:
                print(f"{name}: " + ", ".join(f"{r['defence']} {r['outcome']}" for r in rows[-3:]))
    settings = {"backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size}
    facts = provenance(**settings, stall=stall, program=ours.digest)
    tables = {"outcomes": pd.DataFrame(rows), "whole": pd.DataFrame(whole)}
    notes = [*ours.notes, *(f"{name}: {' '.join((known[name].__doc__ or '').split())}" for name in names)]
    view = "course.mesh.figures:mistakes"
    return Report("wrong_group", ABOUT.title, ranks.label, tables, [], facts, notes, view)


def _right(ranks: Ranks, name: str, drill: Mistake, code: Any) -> list[Any]:
    try:
        return list(ranks.run(_play, drill, code.first, code.Fenced))
    except RankError as error:
        raise RuntimeError(f"{name} fails without its mistake: {error}") from error


def _attempt(
    ranks: Ranks, name: str, drill: Mistake, code: Any, defence: str, right: list[Any]
) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        site = code.Fenced if defence == DOMAIN else code.Plain
        values = list(ranks.run(_play, drill, code.second, site))
        outcome = "right" if values == right else "wrong"
        said = "" if values == right else ", ".join(f"rank {r} has {v}" for r, v in enumerate(values))
    except RankError as error:
        outcome, said = judge(error)
    seconds = round(time.perf_counter() - began, 2)
    return {"drill": name, "defence": defence, "outcome": outcome, "said": said, "seconds": seconds}


def _play(drill: Mistake, pick: Any, site: Callable[[], Any]) -> Any:
    """On a rank: the program, without torch's warnings, which nobody reads in a log of a thousand ranks."""
    dynamo_reset()
    with quiet_stderr(), torch.no_grad():
        return drill(site(), pick)

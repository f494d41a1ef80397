"""Every drill against every defence, live: what a rank that differs does to the others, and who notices first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import pandas as pd
import torch.distributed as dist

from course.shared.options import chosen
from course.shared.outcomes import judge
from course.symmetry.declared import DIVERGENCE as ABOUT
from course.symmetry.drills import DRILLS, Drill, Recompile, Site, what
from labkit.contract import Exchange
from labkit.experiments.options import on_cpu, two_or_more
from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report, provenance
from labkit.torch_compat import compiling_together, dynamo_reset, on_region_entry

STALL_S, TIMEOUT_S = 1.0, 60.0
EXCHANGE_S = 20.0  # how long a part of the contract waits for a rank; a hang is over before
NOTHING = "nothing compiled"
NO_PLACE = "as without: this drill has nothing that it looks at"


@dataclass(frozen=True)
class Defence:
    """A way to notice: parts of `labkit.contract`, a check of the ranks, or a switch of the compiler."""

    name: str
    parts: tuple[str, ...] = ()
    check: str | None = None
    compiler: str = ""


DEFENCES: dict[str, Defence] = {
    defence.name: defence
    for defence in (
        Defence("none"),
        *(Defence(part, (part,)) for part in ("parity", "plan", "digests", "health")),
        Defence("collective check", check="collectives"),
        Defence("guard collectives", compiler="guards"),
        Defence("compiler collectives", compiler="compiler"),
    )
}


def run(
    ranks: Ranks,
    drill: Sequence[str] = (),
    *,
    drills: Mapping[str, Drill] | None = None,
    defences: Sequence[str] = tuple(DEFENCES),
    stall: float = STALL_S,
    talk: bool = False,
) -> Report:
    """Run every drill whole, then with one odd rank under each defence alone, on ranks like `ranks`.

    drill: names of those to run, all by default. drills: further ones by name, as functions of a `Site`. stall
    (seconds): how long ranks wait for each other until that counts as a hang. The report's first table, `outcomes`,
    has a row for each drill and defence: outcome, what was said, and seconds until the call had ended. Outcomes are
    'right', 'wrong' (finished, silently), 'hung', 'crash' (a process died), 'error' (one that names no divergence),
    'caught' (an error that names it) and 'repaired' (right, where it is not without the defence). `whole` has the same
    programs without an odd rank under all parts at once: nothing may be caught there. `arranged` has a row for each
    drill that rests on a sleep and a short timeout: both numbers, how it ended with them, and how its control ended, at
    torch's default timeout. A part that a drill
    of ours never deals with is not run: its row is that of 'none', without seconds, and says so.

    Raises ValueError for a drill or defence that does not exist, before anything runs, and RuntimeError where a drill
    without an odd rank fails, which says nothing about divergence.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, ["order"], defences=["none", "plan"])
    >>> list(report.frame["outcome"])
    ['wrong', 'caught']
    """
    known = {**DRILLS, **(drills or {})}
    names, defences = chosen(drill, known, "drill"), chosen(defences, DEFENCES, "defence")
    if "none" not in defences:
        raise ValueError("a defence is judged against 'none': it has to be among them")
    on_cpu(ranks)
    two_or_more(ranks)
    settings: dict[str, Any] = {"timeout": TIMEOUT_S, "quiet": True, "live": False, "stall": stall}
    whole: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    arranged: list[dict[str, Any]] = []
    ordered = ["none", *(name for name in defences if name != "none")]
    with (
        Ranks(ranks.world_size, ranks.device, ranks.backend, **settings) as plain,
        Ranks(ranks.world_size, ranks.device, ranks.backend, check="collectives", **settings) as checked,
    ):
        for name in names:
            whole[name] = _whole(plain, name, known[name])
            compiles, first = False, len(rows)
            for defence in map(DEFENCES.__getitem__, ordered):
                if defence.compiler and not compiles:
                    rows.append(_row(name, defence, NOTHING, "the drill has no compiled code", None))
                    continue
                if _cannot_act(defence, whole[name]["met"], known[name]):
                    rows.append({**rows[first], "defence": defence.name, "said": NO_PLACE, "seconds": None})
                    continue
                where = checked if defence.check else plain
                row = attempt(where, name, known[name], defence, whole[name]["values"])
                if defence.name == "none":
                    compiles = whole[name]["regions"] > 0
                    bad = row["outcome"] != "right"
                elif row["outcome"] == "right" and bad:
                    row["outcome"] = "repaired"
                rows.append(row)
            if isinstance(made := known[name], Recompile):
                arranged.append(_arranged(plain, name, made, rows[first]["outcome"], whole[name]["values"]))
            if talk:
                said = ", ".join(f"{r['defence']} {r['outcome']}" for r in rows[-len(ordered) :])
                print(f"{name}: {said}")
    return _report(rows, whole, arranged, known, names, ranks, stall)


def _arranged(ranks: Ranks, name: str, drill: Recompile, outcome: str, right: Any) -> dict[str, Any]:
    """What is arranged in a drill, how it ended, and how it ends without the short timeout; no defence is on."""
    control = attempt(ranks, name, drill.control, DEFENCES["none"], right)
    return {
        "drill": name, "sleep_s": drill.sleep_s, "timeout_s": drill.timeout_s, "outcome": outcome,
        "at torch's default timeout": control["outcome"],
    }  # fmt: skip


def attempt(ranks: Ranks, name: str, drill: Drill, defence: Defence, right: Any) -> dict[str, Any]:
    """One drill with an odd rank under one defence: its row."""
    began = time.perf_counter()
    try:
        found = ranks.run(_play, drill, defence.parts, True, defence.compiler)
    except RankError as error:
        outcome, said = judge(error)
        return _row(name, defence, outcome, said, time.perf_counter() - began)
    values = [one["values"] for one in found]
    regions = [one["regions"] for one in found]
    outcome = "right" if values == right else "wrong"
    said = _numbers(values) if outcome == "wrong" else ""
    if len(set(regions)) > 1:
        said = ", ".join(filter(None, [said, f"regions by rank {regions}"]))
    return _row(name, defence, outcome, said, time.perf_counter() - began)


# --- on a rank ---


def _play(drill: Drill, parts: Sequence[str], odd: bool, compiler: str) -> dict[str, Any]:
    exchange = Exchange.connect("drill", timeout=EXCHANGE_S)
    last = exchange.rank == dist.get_world_size() - 1
    site = Site(exchange, parts, odd and last)
    dynamo_reset()
    entered: list[CodeType] = []
    stop = on_region_entry(lambda code: entered.append(code))
    try:
        with quiet_stderr(), compiling_together(compiler == "guards", compiler == "compiler"):
            values = drill(site)
    finally:
        stop()
    return {"values": values, "regions": len(entered), "met": sorted(site.met)}


# --- in the kernel ---


def _whole(ranks: Ranks, name: str, drill: Drill) -> dict[str, Any]:
    """The same program without an odd rank, every part on: what is right, and that nothing cries wolf."""
    every = tuple(part for defence in DEFENCES.values() for part in defence.parts)
    try:
        found = ranks.run(_play, drill, every, False, "", stall=20.0)
    except RankError as error:
        raise RuntimeError(f"drill {name!r} fails without an odd rank: {error}") from error
    values = [one["values"] for one in found]
    return {"values": values, "regions": found[0]["regions"], "met": found[0]["met"]}


def _cannot_act(defence: Defence, met: Sequence[str], drill: Drill) -> bool:
    """Whether a part that is on changes nothing: the drill, one of ours, has no place at which it would act."""
    ours = drill in DRILLS.values() or isinstance(drill, Recompile)
    return bool(defence.parts) and not set(defence.parts) & set(met) and ours


def _row(drill: str, defence: Defence, outcome: str, said: str, seconds: float | None) -> dict[str, Any]:
    return {"drill": drill, "defence": defence.name, "outcome": outcome, "said": said, "seconds": seconds}


def _numbers(values: list[Any]) -> str:
    return "; ".join(f"rank {rank} has {_short(value)}" for rank, value in enumerate(values))


def _short(value: Any) -> str:
    return str(value).replace(".0,", ",").replace(".0]", "]")


def _report(
    rows: list[dict[str, Any]],
    whole: dict[str, Any],
    arranged: list[dict[str, Any]],
    known: Mapping[str, Callable[..., Any]],
    names: Sequence[str],
    ranks: Ranks,
    stall: float,
) -> Report:
    outcomes = pd.DataFrame(rows)
    tables = {
        "outcomes": outcomes,
        "drills": pd.DataFrame([{"drill": name, "what": what(known[name])} for name in names]),
        "whole": pd.DataFrame([{"drill": n, "rank": r, "value": _short(v)} for n in names
                               for r, v in enumerate(whole[n]["values"])]),
        "arranged": pd.DataFrame(
            arranged, columns=["drill", "sleep_s", "timeout_s", "outcome", "at torch's default timeout"]
        ),
    }  # fmt: skip
    made = {
        "backend": ranks.backend,
        "device": ranks.device,
        "world_size": ranks.world_size,
        "stall_s": stall,
    }
    view = "course.shared.drill_figures:figure"
    return Report(
        "divergence", ABOUT.title, ranks.label, tables, [], provenance(**made), _notes(outcomes), view
    )


def _notes(outcomes: pd.DataFrame) -> list[str]:
    notes = []
    for name, rows in outcomes.groupby("drill", sort=False):
        left = rows[rows["defence"] == "none"]["outcome"].item()
        by = rows[rows["outcome"].isin(["caught", "repaired"])]["defence"]
        notes.append(f"{name}: {left} without a defence; noticed by {', '.join(by) or 'none of these'}")
    return notes

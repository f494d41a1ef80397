"""The guard sweep: what makes compiled code compile again, when it goes dynamic, when it gives up, what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from course.guards.declared import GUARDS as ABOUT
from course.shared.options import chosen
from course.shared.program import choose as choose_program
from course.shared.sweep import Sweep, parse_range
from labkit.experiments.options import on_cpu
from labkit.ranks import Ranks
from labkit.report import HOST_ONLY, Report, provenance
from labkit.timing import Verdict, by_slowest, check_rounds, compare

NEEDED = ("DIMENSIONS", "POLICIES", "Layer", "walk", "prices", "call_costs")  # what is taken of the program
VIEW = "course.guards.figures:figure"
FIRST, REUSED, COMPILED = "first compile", "reused", "recompiled"
DYNAMIC, GAVE_UP = "went dynamic", "gave up"
COST = ["compiler", "part", "what", "rank", "round", "seconds"]
SIZES = ("sequence length", "batch")  # what a policy has something to say about
INSTEAD = {  # of letting it vary
    "sequence length": "mark_dynamic, or pad",
    "batch": "mark_dynamic; warm up 1 as well",
    "dtype": "one dtype for each compiled function",
    "strides": ".contiguous() before the compiled part",
    "requires_grad": "warm up both, or fix it",
    "int argument": "warm up two values",
    "float argument": "warm up two values",
    "bool argument": "warm up both",
    "str argument": "warm up each",
    "int attribute": "few values, or torch.where in a fixed loop (an argument compiles as often)",
    "float attribute": "warm up two values",
    "grad mode": "one mode for each compiled function; warm up each",
    "thread count": "set it once, before the first compile",
}


def run(
    ranks: Ranks,
    dimension: Sequence[str] = (),
    policy: Sequence[str] = (),
    *,
    lengths: str | Sequence[int] | None = None,
    batches: str | Sequence[int] | None = None,
    program: Any = None,
    rounds: int = 12,
    inductor: int = 1,
    full: bool = False,
    fresh: bool = False,
    folder: str | Path | None = None,
    talk: bool = False,
) -> Report:
    """Walk a compiled layer through the values of each dimension, on one rank and in step on all of `ranks`.

    dimension, policy: names of those to take, all by default; policies other than 'default' are walked for sizes only.
    lengths, batches: their values, at least two different ones, as numbers or '16,24' or '16:64:8'. program: the cells
    of lesson 09, as a module or a mapping such as a notebook's `globals()`; None is the lesson's own. In the map Dynamo
    alone compiles, which decides all of this, and is the quickest. rounds: of timing, for compiles without Inductor and
    for calls; inductor: how often Inductor compiles; 0 and 0 leave costs out. full: every dimension under every policy,
    with Inductor, and costs eight times.

    Every point (ranks, policy, dimension) is kept when it is done; after an interrupt the same call goes on behind the
    last one. fresh: forget those. folder: where they are kept, None for the reader's own folder.

    The first table, `freeze`, says what to do about each dimension; `steps` has a row for each rank and call. Times are
    seconds. Raises ValueError for a name or a range that does not exist, before any rank is started, and RankError when
    a rank fails.

    >>> import tempfile
    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks, tempfile.TemporaryDirectory() as folder:
    ...     report = run(ranks, ["batch"], ["default"], batches="4,4,6,8", rounds=0, inductor=0, folder=folder)
    >>> list(report.tables["steps"].query("ranks == 2 and rank == 1")["state"])
    ['first compile', 'reused', 'went dynamic', 'reused']
    """
    ours = choose_program("guards", program, NEEDED)
    code = ours.code
    names = chosen(dimension, code.DIMENSIONS, "dimension")
    dimensions = _values({name: code.DIMENSIONS[name][0] for name in names}, lengths, batches)
    policies = chosen(policy, code.POLICIES, "policy")
    if rounds:
        check_rounds(rounds)
    if not isinstance(inductor, int) or inductor < 0:
        raise ValueError(f"inductor is how often it compiles, 0 or more, got {inductor!r}")
    compiler = "inductor" if full else "eager"
    if full:
        rounds, inductor = max(rounds, 24), max(inductor, 8)
    points = _points(list(dimensions), policies, ranks.world_size, full, rounds, inductor)
    if not points:
        raise ValueError(
            f"nothing to walk: {', '.join(policies)} apply to {', '.join(SIZES)} only; add policy 'default'"
        )
    on_cpu(ranks)
    settings = {
        "backend": ranks.backend, "device": ranks.device, "world_size": ranks.world_size, "threads": ranks.threads,
        "compiler": compiler, "rounds": rounds, "inductor": inductor, "program": ours.digest,
    }  # fmt: skip
    decides = settings | {"values": list(dimensions.values())}
    sweep = Sweep("guards", decides, folder, fresh, talk)
    more: dict[Any, Ranks] = {ranks.world_size: ranks}

    def ranks_for(which: Any) -> Ranks:
        if which not in more:
            link = "fake" if which == HOST_ONLY else "gloo"
            size = ranks.world_size if which == HOST_ONLY else 1
            more[which] = Ranks(size, "cpu", link, threads=ranks.threads, quiet=True)
        return more[which]

    try:

        def measure(point: tuple[Any, ...]) -> list[dict[str, Any]]:
            kind, world, which, what = point
            where = ranks_for(world)
            if kind == "walk":
                found = where.run(code.walk, code.Layer, what, which, dimensions[what], compiler, timeout=300)
                head = {"kind": kind, "ranks": world, "policy": which, "dimension": what}
                return [{**head, "rank": rank, **row} for rank, rows in found.items() for row in rows]
            # without communication ranks have nothing to wait for: one of them is measured
            if kind == "calls":
                rows = where.run(code.call_costs, what, timeout=300, ranks=0)[0].to_dict("records")
                rows = [{"what": row.pop("variant"), **row} for row in rows]
            else:
                rows = where.run(code.prices, which, what, timeout=300, ranks=0)[0]
            return [{"kind": "cost", "compiler": which, "part": kind, "rank": 0, **row} for row in rows]

        rows = sweep.run(points, measure)
    finally:
        for own in more.values():
            if own is not ranks:
                own.close()
    notes = [*ours.notes, *filter(None, [sweep.note()])]
    return _report(rows, ranks.label, provenance(**settings, resumed=sweep.resumed), notes)


def _values(known: dict[str, Sequence[Any]], lengths: Any, batches: Any) -> dict[str, tuple[Any, ...]]:
    """The values of the chosen dimensions, with those asked for. Raises ValueError for values that are no sweep."""
    given = {"sequence length": ("lengths", lengths, 4096), "batch": ("batches", batches, 1024)}
    for name, (what, values, _) in given.items():
        if values is not None and name not in known:
            raise ValueError(
                f"{what} were given, and {name!r} is not among the dimensions: {', '.join(known)}"
            )
    found = {}
    for name, usual in known.items():
        what, values, most = given.get(name, ("", None, 0))
        found[name] = tuple(usual) if values is None else parse_range(what, values, 1, most)
    return found


def _points(
    dimensions: Sequence[str],
    policies: Sequence[str],
    world: int,
    full: bool,
    rounds: int,
    inductor: int,
) -> dict[str, tuple[Any, ...]]:
    points: dict[str, tuple[Any, ...]] = {}
    for size in sorted({1, world}):
        for which in policies:
            for what in dimensions:
                if which == "default" or what in SIZES or (full and not which.startswith("mark")):
                    points[f"{size} ranks, {which}, {what}"] = ("walk", size, which, what)
    if points and rounds:
        points["cost of a call"] = ("calls", HOST_ONLY, "eager", rounds)
        points["cost of a compile"] = ("compiles", HOST_ONLY, "eager", min(rounds, 8 if full else 4))
    if points and inductor:
        points["cost of a compile with Inductor"] = ("compiles", HOST_ONLY, "inductor", inductor)
    return points


def _report(rows: list[dict[str, Any]], label: str, settings: dict[str, Any], more: list[str]) -> Report:
    steps = pd.DataFrame([r for r in rows if r["kind"] == "walk"]).drop(columns="kind")
    cost = pd.DataFrame([r for r in rows if r["kind"] == "cost"], columns=COST)
    tables = {"freeze": freeze(steps), "steps": steps, "policies": _policies(steps), "cost": cost}
    notes = [*_notes(steps), *more]
    return Report("guards", ABOUT.title, label, tables, _verdicts(cost), settings, notes, VIEW)


def freeze(steps: pd.DataFrame) -> pd.DataFrame:
    """What to do about each dimension, out of what its values did under the default policy.

    'freeze': the layer gave up, or each value that was new compiled. 'freeze or warm up': more than one further
    compile. 'warm up twice': one. 'free': none. A claim of these values only: another layer may read other things.
    """
    found = []
    mine = steps[steps["policy"] == "default"]
    for name, rows in mine.groupby("dimension", sort=False):
        rows = rows[(rows["ranks"] == rows["ranks"].max()) & (rows["rank"] == 0)]
        states, values = list(rows["state"]), rows["value"].nunique()
        again = sum(state in (COMPILED, DYNAMIC) for state in states)
        gave_up = states.count(GAVE_UP)
        advice = (
            "freeze" if gave_up or (again and again == values - 1 > 2)
            else "freeze or warm up" if again > 1 else "warm up twice" if again else "free"
        )  # fmt: skip
        found.append(
            {
                "dimension": name, "values": values, "compiled again": again, "gave up in": gave_up,
                "went dynamic": "yes" if DYNAMIC in states else "no", "verdict": advice,
                "instead": INSTEAD[str(name)] if advice != "free" else "-",
            }
        )  # fmt: skip
    order = ["freeze", "freeze or warm up", "warm up twice", "free"]
    columns = ["dimension", "values", "compiled again", "gave up in", "went dynamic", "verdict", "instead"]
    table = pd.DataFrame(found, columns=columns)
    return table.sort_values(
        "verdict", key=lambda column: column.map(order.index), kind="stable"
    ).reset_index(drop=True)


def _policies(steps: pd.DataFrame) -> pd.DataFrame:
    """Compiles and calls without compiled code for each size under each policy, rank 0 of the most ranks."""
    rows = steps[
        (steps["ranks"] == steps["ranks"].max()) & (steps["rank"] == 0) & steps["dimension"].isin(SIZES)
    ]
    state = rows["state"]
    counted = rows.assign(compiles=state.isin([FIRST, COMPILED, DYNAMIC]), given_up=state == GAVE_UP)
    return counted.groupby(["dimension", "policy"], sort=False)[["compiles", "given_up"]].sum().reset_index()


def _verdicts(cost: pd.DataFrame) -> list[Verdict]:
    found = []
    calls = cost[cost["part"] == "calls"]
    if len(calls):
        taken = by_slowest(calls, "what")
        one = taken["1 version"]
        found = [compare(m, one) for what, m in taken.items() if str(what).endswith(" versions")]
        found += [compare(taken["gave up"], other) for other in (taken["eager"], one)]
    return found


def _notes(steps: pd.DataFrame) -> list[str]:
    by_rank = steps.groupby(["ranks", "policy", "dimension", "step"])["state"].nunique()
    keys = ["policy", "dimension", "step"]
    worlds = steps[steps["rank"] == 0].groupby(keys)["state"].nunique()
    together = "did the same at every step" if (by_rank == 1).all() else "DID NOT DO THE SAME"
    alike = "the same as" if (worlds == 1).all() else "NOT THE SAME AS"
    wrong = int((steps["right"].astype("boolean") == False).sum())  # noqa: E712  a step without output is neither
    states = steps[(steps["policy"] == "default") & (steps["rank"] == 0)]
    given = sorted(set(states.loc[states["state"] == GAVE_UP, "dimension"]))
    return [
        f"ranks in step {together}; one rank alone did {alike} several in step",
        f"outputs: {wrong or 'none'} of {len(steps)} calls differs from eager"
        if not wrong else f"outputs: {wrong} of {len(steps)} calls DIFFER from eager",
        f"gave up: {', '.join(given) or 'nothing'}",
    ]  # fmt: skip

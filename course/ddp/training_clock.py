"""One training step on a clock: when each collective starts and ends, beside forward and backward, rank by rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pandas as pd
import torch.distributed as dist
from torch import nn

from course.shared.harness import settled
from course.shared.options import whole
from course.shared.streams import Timeline, overlap
from course.shared.streams.timeline import SPANS
from course.shared.training import Build, Graphs, Route, build_route, digits, on_device
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr
from labkit.records import merge, record
from labkit.report import PerRank, Report
from labkit.timing import Times, check_rounds, interleave
from labkit.trace.events import collective_op

__all__ = ["clock", "timelines"]

BATCH = 256  # images a step, over all ranks
STEPS = 3  # recorded; the one of middle length is kept
LAUNCHED = "on a GPU work and collectives stand where the host launched them; what is hidden is not told"


def clock(
    ranks: Ranks,
    make: Callable[[], nn.Module],
    routes: Mapping[str, Build],
    *,
    batch: int = BATCH,
    rounds: int = 0,
) -> Report:
    """Record one step by each route: graphs, breaks, and every collective with its place on the clock.

    Args:
        ranks: started ranks.
        make: makes the model; large enough that a step has something to hide behind.
        routes: by name, a function `build(model, backend) -> Route`, called on every rank.
        batch: images a step, over all ranks.
        rounds: interleaved rounds in which whole steps (forward and backward) are timed; 0 times nothing.

    Returns:
        Tables: `routes` (with the start of the first and of the last all-reduce as a share of the time until backward's
        last matrix product; above 1 there was nothing left to hide behind), and `spans`, in which a transfer begins
        when the last rank has entered its collective; `routes` has their `hidden` share. With rounds also `samples`
        in seconds, and verdicts against the last route.

    Raises:
        ValueError: no route, or a number that is none; nothing has run then.
        RankError: a rank fails.

    >>> clock(None, None, {})
    Traceback (most recent call last):
    ValueError: nothing to run: give at least one route
    """
    if not routes:
        raise ValueError("nothing to run: give at least one route")
    whole(batch=batch)
    if rounds:
        check_rounds(rounds)
    images, labels = digits()
    found = ranks.run(_measure, make, dict(routes), images[:batch], labels[:batch], rounds, timeout=300)
    return _report(found, ranks.label, ranks.device)


def timelines(report: Report) -> dict[str, Timeline]:
    """The recorded step of every route as a timeline of all ranks."""
    spans = report.tables["spans"]
    found = {}
    for name in dict.fromkeys(spans["route"]):
        mine = spans[spans["route"] == name]
        found[name] = Timeline(name, report.label, "ms", mine[list(SPANS)].reset_index(drop=True))
    return found


# --- on a rank ---


def _measure(make: Any, routes: dict[str, Build], images: Any, labels: Any, rounds: int) -> dict[str, Any]:
    images, labels = on_device(images, labels)
    found: dict[str, Any] = {"graphs": {}, "records": {}, "breaks": {}}

    def step(route: Route, phase: Any = nullcontext) -> None:
        route.model.zero_grad()
        route.backward(images, labels, phase)

    with quiet_stderr(), torch_compat.quiet_dynamo():
        for name, build in routes.items():
            seen = Graphs()
            with build_route(make, build, seen) as route:
                with record(operators=False) as cold:
                    step(route, seen.phase)
                for _ in range(2):
                    step(route)  # DDP arranges its buckets anew after the first step
                dist.barrier()
                with record() as rec:
                    for _ in range(STEPS):
                        step(route, rec.forward)
            found["records"][name] = rec
            # of what this route made the compiler compile: after a reset the numbers of compiles begin anew
            found["breaks"][name] = int((cold.breaks["during"] & (cold.breaks["kind"] == "break")).sum())
            found["graphs"][name] = seen.counts
        if rounds:
            with ExitStack() as open_:
                calls: dict[str, Callable[[], Any]] = {}
                for name, build in routes.items():
                    route = open_.enter_context(build_route(make, build, "aot_eager", fresh=not calls))
                    calls[name] = settled(partial(step, route))
                    for _ in range(3):
                        calls[name]()  # compiled here, under the settings of this route
                found["times"] = interleave(calls, rounds=rounds, warmup=1, barrier=dist.barrier)
    return found


# --- in the kernel ---


def _report(found: PerRank[dict[str, Any]], label: str, device: str) -> Report:
    routes, spans = [], []
    for name in found[0]["records"]:
        record = merge([one["records"][name] for one in found.values()])
        step = _middle(record.events)
        here = record.events[(record.events["rank"] == 0) & record.events["forward"].isin([step, step + 1])]
        mine, bars = _placed(record.events, step)
        bars = _from_the_last_entry(bars)
        spans += [{"route": name, **row} for row in bars]
        each = [row for row in mine if row["rank"] == 0]
        reduced = [row for row in each if row["phase"] == "backward"]
        hidden = _hidden(bars) if device == "cpu" else float("nan")
        routes.append(
            {
                "route": name,
                "forward graphs": found[0]["graphs"][name][0],
                "backward graphs": found[0]["graphs"][name][1],
                "breaks": max(one["breaks"][name] for one in found.values()),
                "regions": int((here["kind"] == "region").sum()),
                "collectives": len(each),
                "first starts at": min((row["share"] for row in reduced), default=float("nan")),
                "last starts at": max((row["share"] for row in reduced), default=float("nan")),
                "hidden": hidden,
            }
        )
    tables = {
        "routes": pd.DataFrame(routes),
        "spans": pd.DataFrame(spans, columns=["route", *SPANS]),
    }
    verdicts = []
    if "times" in found[0]:
        times = Times.merge(found.map(lambda one: one["times"]))
        tables["samples"] = times.frame.rename(columns={"variant": "route"})
        tables["routes"]["ms a step"] = [times.median[v] * 1e3 for v in tables["routes"]["route"]]
        *others, last = times.variants
        verdicts = [times.compare(v, last) for v in others]
    notes = [] if device == "cpu" else [LAUNCHED]
    return Report("training_clock", "One step on the clock", label, tables, verdicts, notes=notes)


def _middle(events: pd.DataFrame) -> int:
    """The recorded step of middle length, by the number of its forward: marks are forward, backward, forward, ..."""
    marks = events[(events["kind"] == "forward") & (events["rank"] == events["rank"].min())]
    ends = marks.set_index("forward")[["start_us", "end_us"]]
    lengths = {i: ends.loc[i + 1, "end_us"] - ends.loc[i, "start_us"] for i in ends.index if i % 2 == 0}
    return sorted(lengths, key=lengths.__getitem__)[len(lengths) // 2]


def _placed(events: pd.DataFrame, step: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The collectives of a step, and its bars: phases and waits on the main thread, transfers on gloo's own."""
    zero = events[(events["kind"] == "forward") & (events["forward"] == step)]["start_us"].min()
    rows, bars = [], []
    for rank, mine in events.groupby("rank"):
        marks = mine[mine["kind"] == "forward"].set_index("forward")
        fw, bw = marks.loc[step], marks.loc[step + 1]
        inside = mine[mine["forward"].isin([step, step + 1])]
        products = inside[(inside["name"] == "aten::mm") & (inside["forward"] == step + 1)]
        done = products["end_us"].max() if len(products) else bw["end_us"]

        def bar(lane: str, name: str, kind: str, start: float, end: float, rank: Any = rank) -> None:
            a, b = (start - zero) / 1e3, (end - zero) / 1e3
            bars.append({"rank": int(rank), "lane": lane, "name": name, "kind": kind, "start": a, "end": b})

        calls = inside[inside["kind"] == "collective"].sort_values("start_us")
        blocked = inside[inside["kind"].isin(["collective", "wait"]) & (inside["thread"] == "main")]
        stands = overlap.union(zip(blocked["start_us"], blocked["end_us"], strict=True))
        for name, start, end in (
            ("forward", fw["start_us"], fw["end_us"]),
            ("backward", bw["start_us"], done),
        ):
            for a, b in without((start, end), stands):
                bar("main", name, "compute", a, b)
            for a, b in overlap.meet([(start, end)], stands):
                bar("main", "waits", "synchronize", a, b)
        if bw["end_us"] > done:
            bar("main", "the rest of backward", "synchronize", done, bw["end_us"])
        transfers = inside[inside["kind"] == "transfer"].sort_values("start_us")
        for call in calls.itertuples():
            backward = call.forward == step + 1
            after = call.start_us - bw["start_us"]
            rows.append(
                {
                    "rank": int(rank),
                    "phase": "backward" if backward else "forward",
                    "share": after / (done - bw["start_us"]) if backward else float("nan"),
                }
            )
        for i, way in enumerate(transfers.itertuples()):
            name = calls.iloc[i]["name"] if len(calls) == len(transfers) else way.name
            bar(way.thread, collective_op(name), "collective", way.start_us, way.end_us)
    return rows, bars


def without(span: overlap.Span, holes: Sequence[overlap.Span]) -> list[overlap.Span]:
    """What is left of a span without `holes`, which are in order and apart.

    >>> without((0, 10), [(2, 3), (5, 6)])
    [(0, 2), (3, 5), (6, 10)]
    """
    edge, end = span
    found = []
    for start, stop in overlap.meet([span], holes):
        found.append((edge, start))
        edge = stop
    return [(a, b) for a, b in [*found, (edge, end)] if b > a]


def _from_the_last_entry(bars: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bars with each collective in two: a rank that entered it early waits until the last rank has entered.

    Ranks that called other numbers of collectives cannot be matched; their bars stay as they are.
    """
    by_rank: dict[int, list[dict[str, Any]]] = {bar["rank"]: [] for bar in bars}
    for bar in sorted(bars, key=lambda bar: bar["start"]):
        if bar["kind"] == "collective":
            by_rank[bar["rank"]].append(bar)
    if len({len(mine) for mine in by_rank.values()}) != 1:
        return bars
    found = [bar for bar in bars if bar["kind"] != "collective"]
    for together in zip(*by_rank.values(), strict=True):
        entered = max(bar["start"] for bar in together)
        for bar in together:
            begin = min(entered, bar["end"])
            if bar["start"] < begin:
                found.append({**bar, "name": "waits for its peer", "kind": "synchronize", "end": begin})
            found.append({**bar, "start": begin})
    return found


def _hidden(bars: list[dict[str, Any]]) -> float:
    """The share of all ranks' transfers during which a rank's own main thread was at work; nan without transfers."""
    beside = whole = 0.0
    for rank in {bar["rank"] for bar in bars}:
        spans: dict[str, list[overlap.Span]] = {"collective": [], "compute": [], "synchronize": []}
        for bar in bars:
            if bar["rank"] == rank:
                spans[bar["kind"]].append((bar["start"], bar["end"]))
        beside += overlap.length(overlap.meet(spans["collective"], spans["compute"]))
        whole += overlap.length(spans["collective"])
    return beside / whole if whole else math.nan

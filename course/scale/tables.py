"""The tables of the scale experiment: traces, constants, the model's curve, and the model beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

from course.scale.words import assumptions, notes_of, summary
from course.shared import sockets
from course.shared.costs import Compute, Fit, Link, fit_compute, fit_link, step
from labkit.timing import quantile, slowest

__all__ = ["STATED", "tables"]

STATED = "stated"
COLLECTIVES = ("q-norm", "k-norm", "attention output", "MLP output")  # of one block, in the order they run


def tables(
    found: dict[str, Any], link: Link | None, compute: Compute | None, algorithm: str, units: int, unit: str
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Every table of the report by name, and its notes; `found` holds the traces and what the ranks measured.

    units: how many ranks can work at once, each on a `unit`, 'core' or 'GPU'.
    """
    traces, links = found["traces"], found["links"]
    by_world = {t["world_size"]: t for t in traces if t["rank"] == 0}
    made = _traced(traces)
    # median work of a rank without its talk, by the world whose shard it has
    work = {world: median(samples) for world, samples in found["work"].items()}
    flops = {world: _flops(by_world, world) for world in work}
    worked, unfit = _worked(flops, work, "fitted, host only" if unit == "core" else f"fitted, one {unit}")
    fits = {key: _fit(key, seen) for key, seen in links.items()}
    chosen = compute or (worked.found if worked else None)
    used: dict[str, Link] = {STATED: link} if link else {}
    for (label, world), fit in fits.items():
        if world == min(w for name, w in fits if name == label):
            used[label] = fit.found
    made["model"] = _model(by_world, used, chosen, algorithm)
    made["constants"] = _constants(used, fits, compute, worked)
    made["sweep"] = _sweep(links, fits)
    made["work"] = _work(found["work"], flops, worked)
    made["steps"] = _steps(links)
    made["sent"] = _sent(links, by_world)
    made["check"] = _check(made["steps"], fits, used, chosen, by_world, algorithm, units)
    unfitted = "not fitted" if unfit and compute is None else "stated"
    made["assumptions"] = assumptions(algorithm, units, unit, made["steps"], fits, worked, unfitted)
    made = {"summary": summary(made, used), **made}
    return made, [*unfit, *notes_of(made, traces, links)]


def _worked(flops: dict[int, float], work: dict[int, float], source: str) -> tuple[Fit | None, list[str]]:
    """A rank's overhead and rate; none, and why, where its launches take longer than the work of any shard."""
    if not work:
        return None, []
    try:
        return fit_compute([flops[w] for w in work], list(work.values()), source), []
    except ValueError as error:
        return None, [f"no rate of work was fitted: {error}"]


def _traced(traces: Sequence[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    keys = ("world_size", "rank", "nodes", "digest", "flops", "weight_bytes")
    worlds = [
        {
            **{key: t[key] for key in keys},
            "collectives": len(t["collectives"]),
            "message_bytes": sum(c["bytes"] for c in t["collectives"]),
            "sent_bytes": sum(c["sent"] for c in t["collectives"]),
        }
        for t in traces
    ]
    single = [
        {
            "world_size": t["world_size"], "rank": t["rank"], "place": i, "what": COLLECTIVES[i % len(COLLECTIVES)],
            "operation": c["operation"], "reduction": c["reduction"], "shape": " x ".join(map(str, c["shape"])),
            "dtype": c["dtype"], "bytes": c["bytes"], "sent_bytes": c["sent"],
        }
        for t in traces
        for i, c in enumerate(t["collectives"])
    ]  # fmt: skip
    ends = [t for t in traces if t["world_size"] in (traces[0]["world_size"], traces[-1]["world_size"])]
    names = list(single[0]) if single else ["world_size", "rank", "what", "bytes", "sent_bytes"]
    return {
        "worlds": pd.DataFrame(worlds),
        "collectives": pd.DataFrame(single, columns=names),
        "graphs": pd.DataFrame([{k: t[k] for k in ("world_size", "rank", "digest", "graph")} for t in ends]),
        "tracer": pd.DataFrame(
            [{k: t[k] for k in ("world_size", "rank", "seconds", "cpu_seconds", "peak_mib")} for t in traces]
        ),
    }


def _flops(by_world: dict[int, Any], world: int) -> float:
    """A rank's flops in a world: traced, or worked out of another one's, since the block's products split evenly."""
    if world in by_world:
        return float(by_world[world]["flops"])
    known = max(by_world)
    return by_world[known]["flops"] * known / world


def _fit(key: tuple[str, int], seen: Any) -> Fit:
    label, world = key
    swept = {n: _slowest(seen, "sweep", n) for n in seen[0]["sweep"]}
    return fit_link(
        list(swept), [median(s) for s in swept.values()], world, f"fitted, {label}, {world} ranks"
    )


def _slowest(seen: Any, name: str, size: int | None = None) -> tuple[float, ...]:
    samples = {rank: one[name] if size is None else one[name][size] for rank, one in seen.items()}
    return slowest(name, samples).samples


def _grid(by_world: dict[int, Any]) -> list[int]:
    """The worlds of the model's curve: those traced, every one up to 64 between them, and steps of 2 % beyond.

    Only where the messages of all traced worlds are the same: then those of a world in between are known as well.
    """
    sizes = {
        tuple(c["bytes"] for c in trace["collectives"]) for world, trace in by_world.items() if world > 1
    }
    found, last = set(by_world), max(by_world)
    world = max(2, min(by_world))
    while len(sizes) == 1 and world < last:
        found.add(world)
        world = max(world + 1, round(world * 1.02))
    return sorted(found)


def _model(
    by_world: dict[int, Any], used: dict[str, Link], compute: Compute | None, algorithm: str
) -> pd.DataFrame:
    rows, like = [], by_world[max(by_world)]
    for name, link in used.items():
        if compute is None:
            break
        for world in _grid(by_world):
            messages = [c["bytes"] for c in by_world.get(world, like)["collectives"]]
            one = step(compute, link, world, _flops(by_world, world), messages, algorithm=algorithm)
            ms = (s * 1e3 for s in (one.compute, one.communication, one.seconds))
            rows.append((name, world, *ms, one.share))
    columns = ["link", "world_size", "compute_ms", "communication_ms", "step_ms", "share"]
    return pd.DataFrame(rows, columns=columns)


def _constants(
    used: dict[str, Link], fits: dict[Any, Fit], compute: Compute | None, worked: Fit | None
) -> pd.DataFrame:
    """Every constant with where it comes from and, for a fitted one, how far the fit is from what it was fitted to."""
    rows: list[dict[str, Any]] = []

    def add(link: str, ranks: int | None, found: Any, fit: Fit | None) -> None:
        is_link = isinstance(found, Link)
        rows.append(
            {
                "link": link,
                "ranks": ranks,
                "alpha_us": found.alpha * 1e6 if is_link else None,
                "gbytes_per_s": found.gbytes_per_s if is_link and found.beta else None,
                "overhead_us": None if is_link else found.overhead * 1e6,
                "gflop_per_s": None if is_link else found.rate / 1e9,
                "source": found.source,
                "worst_residual": fit.worst if fit else None,
                "median_residual": median(map(abs, fit.residuals)) if fit else None,
            }
        )

    if STATED in used:
        add(STATED, None, used[STATED], None)
    for (label, world), fit in fits.items():
        add(label, world, fit.found, fit)
    if compute:
        add("work", None, compute, None)
    if worked:
        add("work", 1, worked.found, worked)
    return pd.DataFrame(rows)


def _sweep(links: dict[Any, Any], fits: dict[Any, Fit]) -> pd.DataFrame:
    rows = []
    for (label, world), seen in links.items():
        link = fits[label, world].found
        for nbytes in seen[0]["sweep"]:
            us = [s * 1e6 for s in _slowest(seen, "sweep", nbytes)]
            fitted = link.seconds("all_reduce", world, nbytes) * 1e6
            rows.append((label, world, nbytes, *_spread(us), fitted, fitted / median(us) - 1))
    columns = ["link", "ranks", "bytes", "us", "p10", "p90", "fit_us", "residual"]
    return pd.DataFrame(rows, columns=columns)


def _work(work: dict[int, list[float]], flops: dict[int, float], fit: Fit | None) -> pd.DataFrame:
    rows = []
    for world, samples in work.items():
        ms = [s * 1e3 for s in samples]
        fitted = fit.found.seconds(flops[world]) * 1e3 if fit else None
        rows.append((world, flops[world], *_spread(ms), fitted))
    return pd.DataFrame(rows, columns=["shard_of", "flops", "ms", "p10", "p90", "fit_ms"])


def _steps(links: dict[Any, Any]) -> pd.DataFrame:
    """Whole steps, and the talk's share of them: `share` without waiting for peers, `waiting` with it.

    Of the ranks in one all_reduce the last to come waits for nobody, so the shortest time is the collective's own.
    """
    rows = []
    for (label, world), seen in links.items():
        each = [one for _, one in seen.items()]
        whole = _slowest(seen, "step")
        alone, waiting = [], []
        for i, seconds in enumerate(whole):
            inside = [one["inside"][i] for one in each]
            alone.append(sum(map(min, zip(*inside, strict=True))) / seconds)
            waiting += [sum(mine) / one["step"][i] for mine, one in zip(inside, each, strict=True)]
        ms = [s * 1e3 for s in whole]
        rows.append((label, world, *_spread(ms), *_spread(alone), *_spread(waiting)))
    columns = ["link", "world_size", "ms", "p10", "p90", "share", "share_p10", "share_p90"]
    return pd.DataFrame(rows, columns=[*columns, "waiting", "waiting_p10", "waiting_p90"])


def _spread(samples: Sequence[float]) -> tuple[float, float, float]:
    return median(samples), quantile(samples, 0.1), quantile(samples, 0.9)


def _sent(links: dict[Any, Any], by_world: dict[int, Any]) -> pd.DataFrame:
    """Bytes of one forward between ranks, counted by the kernel, beside what the trace and the ring's term say."""
    rows = []
    for (label, world), seen in links.items():
        looks = [{rank: one["sent"][when] for rank, one in seen.items()} for when in (0, 1)]
        counted = sockets.sent_between(*looks)
        if not counted or world not in by_world:
            continue
        predicted = sum(c["sent"] for c in by_world[world]["collectives"])
        for rank in range(world):
            mine = sum(n for (source, _), n in counted.items() if source == rank)
            rows.append((label, world, rank, predicted, mine, mine / predicted - 1))
    columns = ["link", "world_size", "rank", "predicted_bytes", "counted_bytes", "more"]
    return pd.DataFrame(rows, columns=columns)


def _check(
    steps: pd.DataFrame,
    fits: dict[Any, Fit],
    used: dict[str, Link],
    compute: Compute | None,
    by_world: dict[int, Any],
    algorithm: str,
    units: int,
) -> pd.DataFrame:
    """The model beside each measured step: with the constants of the curve, and with those of the same ranks."""
    rows = []
    for row in steps.to_dict("records"):
        label, world = row["link"], row["world_size"]
        if compute is None or world not in by_world:
            continue
        trace, own = by_world[world], fits[label, world].found
        for link in dict.fromkeys([used[label], own]):
            messages, crowding = [c["bytes"] for c in trace["collectives"]], world / units
            one = step(compute, link, world, trace["flops"], messages, algorithm=algorithm, crowding=crowding)
            ms, low, high = one.seconds * 1e3, row["p10"], row["p90"]
            head = (
                label,
                world,
                link.source,
                ms,
                row["ms"],
                low,
                high,
                ms / row["ms"] - 1,
                bool(low <= ms <= high),
            )
            rows.append((*head, one.share, row["share"], row["waiting"], crowding))
    columns = ["link", "world_size", "constants", "model_ms", "measured_ms", "p10", "p90", "error"]
    columns += ["in_the_spread", "model_share", "measured_share", "with_waiting", "ranks_a_core"]
    return pd.DataFrame(rows, columns=columns)

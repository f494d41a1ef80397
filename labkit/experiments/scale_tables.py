"""The tables of the scale experiment: traces, constants, the model's curve, and the model beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.tensor_parallel.block import COLLECTIVES
from labkit.timing import quantile, slowest
from labkit.timing.costs import Compute, Fit, Link, fit_compute, fit_link, step
from labkit.trace import sockets

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["STATED", "tables"]

STATED = "stated"
TOLERANCE = 1e-3  # float32, one block, sums in another order than the unsharded one


def tables(
    config: Any,
    found: dict[str, Any],
    link: Link | None,
    compute: Compute | None,
    algorithm: str,
    units: int,
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Every table of the report by name, and its notes; `found` holds the traces and what the ranks measured."""
    traces, links = found["traces"], found["links"]
    by_world = {t["world_size"]: t for t in traces if t["rank"] == 0}
    made = _traced(traces)
    # median work of a rank alone, by the world whose shard it has
    work = {world: median(samples) for world, samples in found["work"].items()}
    flops = {world: _flops(by_world, world) for world in work}
    worked = fit_compute([flops[w] for w in work], list(work.values()), "fitted, host only") if work else None
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
    made["assumptions"] = _assumptions(algorithm, units, list(links), fits, worked)
    made = {"summary": _summary(made, used), **made}
    return made, _notes(made, traces, links)


def _traced(traces: Sequence[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    import pandas as pd

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
            "world_size": t["world_size"],
            "rank": t["rank"],
            "place": i,
            "what": COLLECTIVES[i % len(COLLECTIVES)],
            "operation": c["operation"],
            "reduction": c["reduction"],
            "shape": " x ".join(map(str, c["shape"])),
            "dtype": c["dtype"],
            "bytes": c["bytes"],
            "sent_bytes": c["sent"],
        }
        for t in traces
        for i, c in enumerate(t["collectives"])
    ]
    ends = [t for t in traces if t["world_size"] in (traces[0]["world_size"], traces[-1]["world_size"])]
    names = list(single[0]) if single else ["world_size", "rank", "what", "bytes", "sent_bytes"]
    return {
        "worlds": pd.DataFrame(worlds),
        "collectives": pd.DataFrame(single, columns=names),
        "graphs": pd.DataFrame([{k: t[k] for k in ("world_size", "rank", "digest", "graph")} for t in ends]),
        "tracer": pd.DataFrame(
            [{k: t[k] for k in ("world_size", "rank", "seconds", "peak_mib")} for t in traces]
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


def _model(
    by_world: dict[int, Any], used: dict[str, Link], compute: Compute | None, algorithm: str
) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for name, link in used.items() if compute else ():
        for world, trace in by_world.items():
            messages = [c["bytes"] for c in trace["collectives"]]
            one = step(compute, link, world, trace["flops"], messages, algorithm=algorithm)
            rows.append((name, world, one.compute * 1e3, one.communication * 1e3, one.seconds * 1e3, one.share))
    columns = ["link", "world_size", "compute_ms", "communication_ms", "step_ms", "share"]
    return pd.DataFrame(rows, columns=columns)


def _constants(
    used: dict[str, Link], fits: dict[Any, Fit], compute: Compute | None, worked: Fit | None
) -> pd.DataFrame:
    """Every constant with where it comes from and, for a fitted one, how far the fit is from what it was fitted to."""
    import pandas as pd

    rows: list[dict[str, Any]] = []

    def add(link: str, ranks: int | None, found: Any, fit: Fit | None) -> None:
        is_link = isinstance(found, Link)
        rows.append(
            {
                "link": link,
                "ranks": ranks,
                "alpha_us": found.alpha * 1e6 if is_link else None,
                "gbytes_per_s": found.gbytes_per_s if is_link else None,
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
    import pandas as pd

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
    import pandas as pd

    rows = []
    for world, samples in work.items():
        ms = [s * 1e3 for s in samples]
        fitted = fit.found.seconds(flops[world]) * 1e3 if fit else None
        rows.append((world, flops[world], *_spread(ms), fitted))
    return pd.DataFrame(rows, columns=["shard_of", "flops", "ms", "p10", "p90", "fit_ms"])


def _steps(links: dict[Any, Any]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for (label, world), seen in links.items():
        ms = [s * 1e3 for s in _slowest(seen, "step")]
        shares = [
            inside / whole
            for one in seen
            for inside, whole in zip(one["inside"], one["step"], strict=True)
        ]
        rows.append((label, world, *_spread(ms), *_spread(shares)))
    columns = ["link", "world_size", "ms", "p10", "p90", "share", "share_p10", "share_p90"]
    return pd.DataFrame(rows, columns=columns)


def _spread(samples: Sequence[float]) -> tuple[float, float, float]:
    return median(samples), quantile(samples, 0.1), quantile(samples, 0.9)


def _sent(links: dict[Any, Any], by_world: dict[int, Any]) -> pd.DataFrame:
    """Bytes of one forward between ranks, counted by the kernel, beside what the trace and the ring's term say."""
    import pandas as pd

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
    import pandas as pd

    rows = []
    for row in steps.to_dict("records"):
        label, world = row["link"], row["world_size"]
        if compute is None or world not in by_world:
            continue
        trace, own = by_world[world], fits[label, world].found
        for link in dict.fromkeys([used[label], own]):
            one = step(
                compute,
                link,
                world,
                trace["flops"],
                [c["bytes"] for c in trace["collectives"]],
                algorithm=algorithm,
                crowding=world / units,
            )
            ms = one.seconds * 1e3
            rows.append(
                {
                    "link": label,
                    "world_size": world,
                    "constants": link.source,
                    "model_ms": ms,
                    "measured_ms": row["ms"],
                    "p10": row["p10"],
                    "p90": row["p90"],
                    "error": ms / row["ms"] - 1,
                    "in_the_spread": bool(row["p10"] <= ms <= row["p90"]),
                    "model_share": one.share,
                    "measured_share": row["share"],
                    "ranks_a_core": world / units,
                }
            )
    columns = ["link", "world_size", "constants", "model_ms", "measured_ms", "p10", "p90", "error"]
    columns += ["in_the_spread", "model_share", "measured_share", "ranks_a_core"]
    return pd.DataFrame(rows, columns=columns)


def _assumptions(
    algorithm: str, units: int, links: Sequence[tuple[str, int]], fits: dict[Any, Fit], worked: Fit | None
) -> pd.DataFrame:
    """What the model takes for granted, and what is known here of each."""
    import pandas as pd

    how = {
        "ring": "a ring, whatever the message: 2 (p - 1) steps, 2 (p - 1) / p of its bytes (Patarasuk and Yuan 2009)",
        "doubling": "recursive doubling: log2 p steps of the whole message (Thakur, Rabenseifner and Gropp 2005)",
        "best": "a ring or recursive doubling, whichever is cheaper for the message",
    }[algorithm]
    crowded = sorted({world for _, world in links if world > units})
    worst = max((fit.worst for fit in fits.values()), default=None)
    rows = [
        (f"an all_reduce runs as {how}", "a library changes its algorithm with size and world; gloo's is a ring"),
        ("every link is alike: one alpha, one beta", "a cluster's differ inside of a node and between nodes"),
        (
            "a message costs steps x alpha + bytes x beta",
            "stated" if worst is None else f"the fits are off by at most {worst:.0%} of a time",
        ),
        ("constants found on few ranks hold on many", "the check has both, where they were fitted twice"),
        ("nothing overlaps", "right for this block: each of its four results is used at once"),
        ("ranks arrive together", "they do not: waiting for a late peer is in what is measured, not in the model"),
        (
            "a rank's work is overhead + flops / rate",
            f"off by at most {worked.worst:.0%} on the shards timed" if worked else "stated",
        ),
        (
            "every rank has a core of its own; where it has not, its work takes ranks / cores times as long",
            f"not so on {', '.join(map(str, crowded))} ranks here ({units} cores), and that a rank that waits for a "
            "core makes its peers wait is left out"
            if crowded
            else f"{units} here",
        ),
    ]
    return pd.DataFrame(rows, columns=["the model assumes", "here"])


def _summary(made: dict[str, pd.DataFrame], used: dict[str, Link]) -> pd.DataFrame:
    """A row for each world: what was traced, what the model makes of it, and what was measured, where it was."""
    import pandas as pd

    worlds = made["worlds"][made["worlds"]["rank"] == 0]
    rows = []
    for one in worlds.to_dict("records"):
        row: dict[str, Any] = {
            "world_size": one["world_size"],
            "collectives": one["collectives"],
            "KB sent a rank": round(one["sent_bytes"] / 1024, 1),
            "Mflop a rank": round(one["flops"] / 1e6, 2),
        }
        for name in used:
            said = made["model"].query("link == @name and world_size == @one['world_size']")
            for r in said.to_dict("records"):
                row[f"{name}: model ms"] = round(r["step_ms"], 3)
                row[f"{name}: model share"] = f"{r['share']:.0%}"
            seen = made["steps"].query("link == @name and world_size == @one['world_size']")
            for r in seen.to_dict("records"):
                row[f"{name}: measured ms"] = f"{r['ms']:.3g} ({r['p10']:.3g}-{r['p90']:.3g})"
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def _notes(made: dict[str, pd.DataFrame], traces: Sequence[dict[str, Any]], links: dict[Any, Any]) -> list[str]:
    tracer, graphs = made["tracer"], made["worlds"]
    last = tracer.iloc[-1]
    notes = [
        f"the tracer itself took {tracer['seconds'].sum():.1f} s for {len(tracer)} traces "
        f"({last['seconds']:.1f} s for {last['world_size']:.0f} ranks), and at most {tracer['peak_mib'].max():.0f} MiB "
        f"({tracer['peak_mib'].iloc[0]:.0f} after the first)"
    ]
    apart = graphs[graphs["world_size"] > 1]["digest"].nunique()
    notes.append(
        "one graph for all of these worlds, and for the first and the last rank: the same operations in the same order"
        if apart == 1
        else f"{apart} different graphs among these worlds"
    )
    for row in made["check"].to_dict("records"):
        notes.append(
            f"{row['link']}, {row['world_size']} ranks: model {row['model_ms']:.3g} ms ({row['constants']}), measured "
            f"{row['measured_ms']:.3g} ({row['p10']:.3g}-{row['p90']:.3g}): off by {row['error']:+.0%}"
        )
    errors = [seen[0]["error"] for seen in links.values()]
    if errors:
        agree = "agree" if max(errors) <= TOLERANCE else "DO NOT AGREE"
        notes.append(f"outputs {agree} with the unsharded block: largest difference {max(errors):.1e}")
    notes += [f"the model assumes: {a}. Here: {b}" for a, b in made["assumptions"].itertuples(index=False)]
    return notes

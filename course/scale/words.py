"""The scale experiment in words: what the model assumes and what is known of it here, the summary, the notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from course.shared.costs import Fit, Link

__all__ = ["assumptions", "notes_of", "summary"]

TOLERANCE = 1e-3  # float32, one block, sums in another order than the unsharded one


def assumptions(
    algorithm: str,
    units: int,
    unit: str,
    steps: pd.DataFrame,
    fits: dict[Any, Fit],
    worked: Fit | None,
    unfitted: str,
) -> pd.DataFrame:
    """What the model takes for granted, and what is known here of each."""
    how = {
        "ring": "a ring, whatever the message: 2 (p - 1) steps, 2 (p - 1) / p of its bytes (Patarasuk and Yuan 2009)",
        "doubling": "recursive doubling: log2 p steps of the whole message (Thakur, Rabenseifner and Gropp 2005)",
        "best": "a ring or recursive doubling, whichever is cheaper for the message",
    }[algorithm]
    crowded = sorted({world for world in steps["world_size"] if world > units})
    late = "unknown"
    if len(steps):
        most = steps.loc[(steps["waiting"] - steps["share"]).idxmax()]
        late = (
            f"they do not: on {most['world_size']} ranks over {most['link']} all_reduces take {most['waiting']:.0%} of "
            f"a step, and {most['share']:.0%} without waiting for late peers"
        )
    worst = max((fit.worst for fit in fits.values()), default=None)
    rows = [
        (
            f"an all_reduce runs as {how}",
            "a library changes its algorithm with size and world; gloo's is a ring, and over shm ranks read each "
            "other's memory",
        ),
        ("every link is alike: one alpha, one beta", "a cluster's differ inside of a node and between nodes"),
        (
            "a message costs steps x alpha + bytes x beta",
            "stated" if worst is None else f"the fits are off by at most {worst:.0%} of a time",
        ),
        ("constants found on few ranks hold on many", "the check has both, where they were fitted twice"),
        ("nothing overlaps", "right for this block: each of its four results is used at once"),
        ("ranks arrive together", late),
        (
            "a rank's work is overhead + flops / rate",
            f"off by at most {worked.worst:.0%} on the shards timed" if worked else unfitted,
        ),
        (
            f"every rank has a {unit} of its own; where it has not, its work takes ranks / {unit}s times as long",
            f"not so on {', '.join(map(str, crowded))} ranks here ({units} {unit}{'s' * (units > 1)}), and that a rank "
            f"that waits for a {unit} makes its peers wait is left out"
            if crowded
            else f"{units} here",
        ),
    ]
    return pd.DataFrame(rows, columns=["the model assumes", "here"])


def summary(made: dict[str, pd.DataFrame], used: dict[str, Link]) -> pd.DataFrame:
    """A row for each world: what was traced, what the model makes of it, and what was measured, where it was."""
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


def notes_of(
    made: dict[str, pd.DataFrame], traces: Sequence[dict[str, Any]], links: dict[Any, Any]
) -> list[str]:
    """The report's sentences: what tracing took, whether graphs agree, each check with its error, every assumption."""
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
            + (", and its ranks share cores" if row["ranks_a_core"] > 1 else "")
        )
    errors = [seen[0]["error"] for seen in links.values()]
    if errors:
        agree = "agree" if max(errors) <= TOLERANCE else "DO NOT AGREE"
        notes.append(f"outputs {agree} with the unsharded block: largest difference {max(errors):.1e}")
    notes += [f"the model assumes: {a}. Here: {b}" for a, b in made["assumptions"].itertuples(index=False)]
    return notes

"""What was asked of torch.compile against what came of it: a row only where torch's own record has the proof."""

from __future__ import annotations

import re

import pandas as pd

from oddrank.counted import counted
from oddrank.look import gradients, switch_counts
from oddrank.look.look import Look

__all__ = ["idle", "rows"]

_SYMBOLIC = re.compile(r'(?P<name>\w+): "\w+\[(?P<shape>[^\]]*\bs\d+[^\]]*)\]')


def idle(looked: Look) -> pd.DataFrame:
    """Return what torch.compile made and no rank ever called, neither by itself nor inside of compiled code."""
    made, code = looked.held["asked"], "\n".join(looked.held["texts"]["code"].unique())
    calls = made.groupby(["place", "name"], sort=False).agg(calls=("calls", "sum"), inside=("inside", "any"))
    found = calls[(calls["calls"] == 0) & ~calls["inside"]].reset_index()
    # a function that compiled code calls stands in the comments of that code's graph
    traced = [
        not name.endswith(".forward") and f" in {name.rpartition('.')[2]}," in code for name in found["name"]
    ]
    return found.loc[[not one for one in traced], ["place", "name"]]


def rows(looked: Look) -> pd.DataFrame:
    """Return what was asked against what was got.

    Returns:
        Columns switch, asked and got. What torch says nothing of has no row.
    """
    made = looked.held["asked"]
    found = []
    unused = set(idle(looked).itertuples(index=False, name=None))
    for (place, name), part in made.groupby(["place", "name"], sort=False):
        calls = ", ".join(map(str, part.groupby("rank")["calls"].sum().unique()))
        if (place, name) in unused:
            got = "no effect, because it is never called"
        else:
            often = counted(int(calls), "times") if calls.isdigit() else f"{calls} times"
            got = f"called {often}" if part["calls"].any() else "part of another compiled call"
        times = part.groupby("rank").size().max()
        found.append(("torch.compile", f"{name} at {place}{f', {times} of them' if times > 1 else ''}", got))
    if len(made):
        each = {rank: [row.operators for row in looked.compiled if row.rank == rank] for rank in looked.ranks}
        for all_, full, ops in dict.fromkeys(
            (len(of), sum(n > 0 for n in of), sum(of)) for of in each.values()
        ):
            got = f"graphs: {full}, with {counted(ops, 'operators')}; regions without a graph: {all_ - full}"
            found.append(("torch.compile", "all of the above", got if full else f"no effect: {got}"))
    found += switch_counts.rows(looked)
    for call, placed in gradients.untold(looked.held["gradients"]):
        got = "cannot tell whether ranks hold the same, because a graph holds it: run it once with backend='eager'"
        found.append((call, f"gradient taken for {placed}", got))
    symbolic = {
        f"{row.name}: `{at['name']}` [{at['shape']}]"
        for row in looked.held["texts"].drop_duplicates("code").itertuples()
        for at in _SYMBOLIC.finditer(row.code.partition("):\n")[0])
    }
    wish = ", ".join(sorted(set(made["dynamic"])))
    if symbolic or "True" in wish:
        more = f" and {len(symbolic) - 4} more" if len(symbolic) > 4 else ""
        got = "; ".join(sorted(symbolic)[:4]) + more or "no effect: every size in every graph is a number"
        found.append(("dynamic shapes", f"dynamic={wish}", got))
    known = [row for row in looked.whole.compiles if row.cached is not None]
    if known:
        hits: dict[int, list[bool]] = {}
        answers: dict[tuple[str, str], set[bool]] = {}
        for row in known:
            hits.setdefault(row.rank, []).append(bool(row.cached))
            answers.setdefault((row.id, row.name), set()).add(bool(row.cached))
        got = "; ".join(f"rank {rank}: {sum(mine)} of {len(mine)} hit" for rank, mine in sorted(hits.items()))
        odd = [f"{name}: one rank hit and another missed" for (_, name), on in answers.items() if len(on) > 1]
        found.append(("Inductor's cache", "on", "; ".join([got, *odd[:3]])))
    return pd.DataFrame(found, columns=["switch", "asked", "got"])

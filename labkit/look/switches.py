"""What was asked of torch.compile against what came of it: a row only where torch's own record has the proof."""

from __future__ import annotations

import re

import pandas as pd

from labkit.look import gradients, switched
from labkit.look.found import Look

__all__ = ["idle", "rows"]

_SYMBOLIC = re.compile(r'(?P<name>\w+): "\w+\[(?P<shape>[^\]]*\bs\d+[^\]]*)\]')


def idle(looked: Look) -> pd.DataFrame:
    """Return what torch.compile made and no rank ever called, neither by itself nor inside of compiled code."""
    made, code = looked.whole["asked"], "\n".join(looked.whole["graphs"]["code"].unique())
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
    made, graphs = looked.whole["asked"], looked.whole["graphs"]
    found = []
    unused = set(idle(looked).itertuples(index=False, name=None))
    for (place, name), part in made.groupby(["place", "name"], sort=False):
        calls = ", ".join(map(str, part.groupby("rank")["calls"].sum().unique()))
        if (place, name) in unused:
            got = "no effect, because it is never called"
        else:
            got = f"called {calls} times" if part["calls"].any() else "part of another compiled call"
        times = part.groupby("rank").size().max()
        found.append(("torch.compile", f"{name} at {place}{f', {times} of them' if times > 1 else ''}", got))
    if len(made):
        per = graphs.assign(full=graphs["ops"] > 0).groupby("rank")
        count = per.agg(graphs=("full", "sum"), ops=("ops", "sum"), all=("ops", "size")).reindex(looked.ranks)
        for row in count.fillna(0).astype(int).drop_duplicates().itertuples():
            got = f"{row.graphs} graphs with {row.ops} operators; {row.all - row.graphs} regions without a graph"
            found.append(("torch.compile", "all of the above", got if row.graphs else f"no effect: {got}"))
    found += switched.rows(looked)
    for call, placed in gradients.untold(looked.held["gradients"]):
        got = "cannot tell whether ranks hold the same, because a graph holds it: run it once with backend='eager'"
        found.append((call, f"gradient taken for {placed}", got))
    symbolic = {
        f"{row.name}: `{at['name']}` [{at['shape']}]"
        for row in graphs.drop_duplicates("digest").itertuples()
        for at in _SYMBOLIC.finditer(row.code.partition("):\n")[0])
    }
    wish = ", ".join(sorted(set(made["dynamic"])))
    if symbolic or "True" in wish:
        more = f" and {len(symbolic) - 4} more" if len(symbolic) > 4 else ""
        got = "; ".join(sorted(symbolic)[:4]) + more or "no effect: every size in every graph is a number"
        found.append(("dynamic shapes", f"dynamic={wish}", got))
    compiles = looked.whole["compiles"]
    known = compiles[compiles["cached"].notna() & ~compiles["name"].str.endswith(", backward")]
    if len(known):
        hits = known["cached"].astype(bool).groupby(known["rank"])
        got = "; ".join(f"rank {rank}: {mine.sum()} of {len(mine)} hit" for rank, mine in hits)
        differ = known.groupby(["compile_id", "name"])["cached"].nunique().gt(1)
        odd = [f"{name}: one rank hit and another missed" for (_, name), on in differ.items() if on]
        found.append(("Inductor's cache", "on", "; ".join([got, *odd[:3]])))
    return pd.DataFrame(found, columns=["switch", "asked", "got"])

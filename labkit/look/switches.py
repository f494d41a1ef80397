"""What was asked of torch.compile against what came of it: a row only where torch's own record has the proof."""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from labkit import places

if TYPE_CHECKING:
    from labkit.look.found import Look

__all__ = ["TYPES", "Made", "asked", "idle", "rows"]

TYPES = {"rank": "int64", "place": "str", "name": "str", "calls": "int64", "recorded": "int64"}
TYPES |= {"inside": "bool", "own": "bool", "ddp": "bool", "dynamic": "str"}
_TORCH = os.path.dirname(torch.__file__) + os.sep
_SYMBOLIC = re.compile(r'(?P<name>\w+): "\w+\[(?P<shape>[^\]]*\bs\d+[^\]]*)\]')


@dataclass
class Made:
    """A callable that torch.compile made: where, of what, and how often it was called, in all and in recorded steps."""

    place: str
    name: str
    own: bool  # whether some code in it is not torch's
    ddp: bool
    dynamic: str
    calls: int = 0
    recorded: int = 0
    module: Callable[[], Any] = field(default=lambda: None, repr=False)

    @classmethod
    def of(cls, model: Any, options: dict[str, Any]) -> Made:
        """Describe what torch.compile is given, at the line of the program that calls it."""
        frame: Any = sys._getframe(1)
        while frame is not None and places.is_library(frame.f_code.co_filename):
            frame = frame.f_back
        place = places.place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""
        module = getattr(model, "__self__", model)  # `module.compile()` compiles a method
        if not isinstance(module, torch.nn.Module):
            name = getattr(model, "__qualname__", type(model).__name__).rpartition("<locals>.")[2]
            return cls(place, name, _not_torchs(model), False, str(options.get("dynamic")))
        parts = list(module.modules())
        own = any(_not_torchs(type(part).forward) for part in parts)
        ddp = any(isinstance(part, torch.nn.parallel.DistributedDataParallel) for part in parts)
        name = f"{type(module).__qualname__.rpartition('<locals>.')[2]}.forward"
        return cls(place, name, own, ddp, str(options.get("dynamic")), module=weakref.ref(module))


def _not_torchs(fn: Any) -> bool:
    code = getattr(fn, "__code__", None)
    return code is None or not code.co_filename.startswith(_TORCH)


def asked(made: list[Made]) -> pd.DataFrame:
    """Make the table of what torch.compile made on one rank; its columns are those of `TYPES`, without rank.

    `inside` says that it is a part of another one that was called, whose graphs hold it.
    """
    rows = []
    for one in made:
        module = one.module()
        others = [other.module() for other in made if other is not one and other.calls]
        inside = module is not None and any(
            module in other.modules() for other in others if other is not None
        )
        rows.append((one.place, one.name, one.calls, one.recorded, inside, one.own, one.ddp, one.dynamic))
    return pd.DataFrame(rows, columns=[name for name in TYPES if name != "rank"])


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
        got = "no effect, because it is never called" if (place, name) in unused else f"called {calls} times"
        got = (
            "part of another compiled call"
            if not part["calls"].any() and (place, name) not in unused
            else got
        )
        times = part.groupby("rank").size().max()
        found.append(("torch.compile", f"{name} at {place}{f', {times} of them' if times > 1 else ''}", got))
    if len(made):
        per = graphs.assign(full=graphs["ops"] > 0).groupby("rank")
        count = per.agg(graphs=("full", "sum"), ops=("ops", "sum"), all=("ops", "size")).reindex(looked.ranks)
        for row in count.fillna(0).astype(int).drop_duplicates().itertuples():
            got = f"{row.graphs} graphs with {row.ops} operators; {row.all - row.graphs} regions without a graph"
            found.append(("torch.compile", "all of the above", got if row.graphs else f"no effect: {got}"))
    if made["ddp"].any() and (cut := graphs[graphs["backend_graphs"] > 1]).size:
        said = [f"{r.name} cut into {r.backend_graphs}" for r in cut.drop_duplicates("name").itertuples()]
        found.append(("DDPOptimizer", "graphs cut at the borders of DDP's buckets", "; ".join(said[:3])))
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

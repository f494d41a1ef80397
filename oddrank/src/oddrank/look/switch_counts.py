"""What DDPOptimizer, FSDP2, Inductor's passes and compile_on_one_rank did, from what every rank saw."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from oddrank.counted import counted
from oddrank.look.look import Look
from oddrank.torch_names import OPTIMIZE_DDP, PASSES

__all__ = ["rows"]

Row = tuple[str, str, str]
_BUCKETS = ("bucket_all_gathers_fx", "bucket_reduce_scatters_fx", "bucket_all_reduces_fx")


def rows(looked: Look) -> list[Row]:
    """Return the rows switch, asked and got of what was in effect on any rank."""
    seen = looked.held["effects"]
    return [
        *_ddp(looked, seen),
        *_fsdp(looked, seen),
        *_passes(seen),
        *_one_rank(looked, seen),
    ]


def _by_rank(said: dict[int, str]) -> str:
    """One text where ranks say the same, otherwise each rank's."""
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"rank {rank}: {text}" for rank, text in said.items())


def _ddp(looked: Look, seen: pd.DataFrame) -> Iterable[Row]:
    cuts = seen[seen["switch"] == "DDPOptimizer"]
    names = {row.id: row.name for row in looked.whole.compiles}
    for id_, part in cuts.groupby("compile", sort=False):
        said = {}
        for row in part.drop_duplicates("rank").itertuples():
            parts = int(row.after)
            name = names.get(str(id_), id_)
            buckets = f"DDP has {row.before} bucket{'s' * (row.before != '1')}"
            if row.before == "0":
                buckets = "cannot tell DDP's buckets, because it made none by the end of the recorded steps"
            if parts > 1:
                said[int(row.rank)] = f"did cut {name} into {parts} graphs; {buckets}"
            else:
                why = f"no effect, because it found the parameters of 1 bucket in {name}"
                said[int(row.rank)] = f"{why}; {buckets}"
        yield "DDPOptimizer", OPTIMIZE_DDP, _by_rank(said)
    if looked.held["asked"]["ddp"].any() and cuts.empty:
        off = seen[seen["switch"] == "optimize_ddp"]["value"].unique()
        why = f"the setting is {off[0]}" if len(off) else "no graph was compiled inside of DDP's forward"
        yield "DDPOptimizer", OPTIMIZE_DDP, f"no effect, because {why}"


def _fsdp(looked: Look, seen: pd.DataFrame) -> Iterable[Row]:
    hooks = seen[seen["switch"] == "FSDP2 hooks"]
    for asked, part in hooks.groupby("value", sort=False):
        said = {}
        for rank, mine in part.groupby("rank"):
            calls, runs = mine["before"].astype(int).sum(), mine["after"].astype(int).sum()
            bypass = (mine["after"] == "0").sum()
            text = f"called {counted(calls, 'times')}; FSDP2's hook before the forward ran {counted(runs, 'times')}"
            if bypass:
                text = f"bypasses FSDP2's hooks in {bypass} of {len(mine)} modules: {text}"
            said[int(rank)] = text
        yield "fully_shard", f"compiled: {asked}", _by_rank(said)
    gathers = seen[seen["switch"] == "fsdp gather"]
    if len(gathers):
        texts = looked.held["texts"]
        inside = texts[texts["rank"] == looked.ranks[0]]["code"].str.count("all_gather_into_tensor").sum()
        times = gathers.groupby("rank")["times"].sum()
        said = {
            int(rank): f"did {counted(n, 'gathers')} outside of graphs in the run, {inside} in graphs"
            for rank, n in times.items()
        }
        yield "fully_shard", "gathers of parameters", _by_rank(said)
    for way in ("forward", "backward"):
        mine = seen[seen["switch"] == f"{way} prefetch"]
        if len(mine):
            said = {int(rank): _prefetched(part) for rank, part in mine.groupby("rank")}
            yield f"set_modules_to_{way}_prefetch", "modules named by the program", _by_rank(said)


def _prefetched(part: pd.DataFrame) -> str:
    began = part[part["after"] == "began"]["times"].sum()
    if began:
        return f"did {counted(began, 'gathers')} early, of {part['times'].sum()} asked for"
    return f"no effect, because {'; '.join(part['note'].unique())} (asked for {counted(part['times'].sum(), 'times')})"


def _passes(seen: pd.DataFrame) -> Iterable[Row]:
    for switch in PASSES:
        mine = seen[(seen["switch"] == switch)]
        on, ran = mine[mine["note"] == "on"], mine[mine["note"] != "on"]
        if on.empty:
            continue
        value = ", ".join(on["value"].unique())
        said = {
            int(rank): _changed(switch, ran[ran["rank"] == rank], int(part["times"].sum()))
            for rank, part in on.groupby("rank")
        }
        yield f"torch._inductor.config.{switch}", value, _by_rank(said)


def _changed(switch: str, ran: pd.DataFrame, graphs: int) -> str:
    count = int(ran["times"].sum())
    rest = (
        f"; cannot tell for {graphs - count} of {graphs} graphs: they came from a cache"
        if graphs > count
        else ""
    )
    changed = ran[ran["before"] != ran["after"]]
    if len(changed):
        first = changed.iloc[0]
        more = f"; {len(changed) - 1} more changed" if len(changed) > 1 else ""
        return (
            f"did change a graph: before: {first.before or 'no collective'}; after: {first.after}{more}{rest}"
        )
    if not count:
        return (
            "cannot tell, because every graph came from Inductor's cache, where the pass does not run again"
        )
    held = [text for text in ran["before"].unique() if text]
    if not held:
        return f"no effect, because no graph has a collective in it{rest}"
    why = "torch gives no reason"
    if switch in _BUCKETS and all(re.match(r"1 \w+,? \d+ op", text) for text in held):
        why = "a bucket needs two collectives, and a graph has one"
    return f"no effect: {why}; the pass left every graph as it was, with {'; '.join(held[:2])}{rest}"


def _one_rank(looked: Look, seen: pd.DataFrame) -> Iterable[Row]:
    names = [name for name in seen["switch"].unique() if name.endswith("compile_on_one_rank")]
    if not names:
        return
    made = {rank: [row for row in looked.whole.compiles if row.rank == rank] for rank in looked.ranks}
    each = "; ".join(
        f"rank {rank} compiled {len(mine)}, {sum(bool(row.cached) for row in mine)} of them from a cache"
        for rank, mine in made.items()
    )
    lookups = seen[seen["switch"] == "runtime lookups"]
    many = lookups.groupby("rank").apply(lambda part: (part["before"].astype(int) * part["times"]).sum())
    differ = len(looked.differing("dynamo"))
    if lookups.empty:
        what = "cannot tell what is in the graphs, because Inductor compiled none of them here"
    elif not many.any():
        what = "no effect, because no graph looks up a coordinate or a group at run time"
    else:
        what = f"did lookups of coordinates and groups at run time in the graphs: {many.max()}"
    same = f"graphs that differ between ranks: {differ}" if differ else "graphs of ranks are equal"
    yield names[0], "True", f"{what}; {same}; {each}; the switch itself sends no compiled code to other ranks"

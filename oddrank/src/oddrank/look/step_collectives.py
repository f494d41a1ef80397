"""The collectives of the recorded steps, from torch's flight recorder: shapes, dtypes and groups, compared."""

from __future__ import annotations

import json

import pandas as pd
import torch.distributed as dist

from oddrank import torch_names
from oddrank.live import introspect

__all__ = ["TYPES", "compared", "differing", "take"]

TYPES = {
    "rank": "int64",
    "group": "str",
    "ranks": "str",
    "number": "int64",
    "op": "str",
    "tensors": "str",
    "place": "str",
    "owner": "str",
    "bytes": "int64",
}


def take(rank: int, since_ns: int) -> pd.DataFrame:
    """Read this rank's collectives from torch's flight recorder, those of compiled graphs and of DDP included.

    Source: torch/csrc/distributed/c10d/FlightRecorder.hpp. It keeps the last ones only, and none over shared memory.

    Args:
        rank: This process.
        since_ns: The `time.time_ns()` when the first recorded step began.

    Returns:
        A row for each in their order: the group by name and by ranks, its number in the group, the operation, shapes
        and dtypes of its tensors, the line that called it, and the bytes of its inputs on this rank: -1 where these are
        not known, or the recorder has lost the first ones. Messages between two ranks are left out.
    """
    known = introspect.collectives() if dist.is_available() and dist.is_initialized() else None
    lost = len(known or ()) >= introspect.kept() and known[0].time_ns >= since_ns  # type: ignore[index]
    members = {name: ",".join(map(str, ranks)) for name, ranks in torch_names.group_members().items()}
    rows = [
        (
            rank,
            call.group,
            members.get(call.group, ""),
            call.number,
            call.op,
            _tensors(call),
            call.place,
            call.owner,
            -1 if lost else call.nbytes,
        )
        for call in known or ()
        if not call.between_two and (call.time_ns >= since_ns or not call.time_ns)
    ]
    return pd.DataFrame(rows, columns=list(TYPES)).astype(TYPES)


def differing(table: pd.DataFrame) -> list[str]:
    """Describe the first collective of each group that ranks called otherwise, and groups of one name with other ranks.

    Args:
        table: What all ranks took.
    """
    found = []
    for name, rows in table.groupby("group", sort=False):
        made = rows.groupby("ranks")["rank"].agg(lambda held: sorted(set(held)))
        if _overlap(list(made.index)):
            said = "; ".join(f"[{held}] on rank {_and(who)}" for held, who in made.items())
            found.append(f"group {name} has other members: {said}")
            continue
        for _, same in rows.groupby("ranks", sort=False):
            if first := _first(same):
                found.append(f"{first} (group {name})" if name != "0" else first)
    return found


def compared(table: pd.DataFrame) -> str:
    """Say in words how many collectives were compared; '' where the recorder had none of two ranks."""
    both = table.groupby(["group", "ranks", "number"])["rank"].nunique()
    count, groups = int((both > 1).sum()), both[both > 1].reset_index()["group"].nunique()
    return (
        f"operations, shapes and dtypes of {count} collective{'s' * (count > 1)} in {groups} group{'s' * (groups > 1)}"
        if count
        else ""
    )


def _tensors(call: introspect.Collective) -> str:
    if not call.even:
        return ""
    return ", ".join(
        f"{json.dumps(shape)} {dtype}" for shape, dtype in zip(call.shapes, call.dtypes, strict=False)
    )


def _first(rows: pd.DataFrame) -> str:
    """The first number at which ranks of one group called different things, among those that several ranks have."""
    for number, at in rows.groupby("number"):
        at = at.set_index("rank")
        said = at[["op", "tensors"]].agg(" ".join, axis=1).str.strip()
        # by its size a bucket may be of several DDP modules, and then the backward tells them apart
        shared = at["owner"].str.contains(" or ").all() and at["place"].all() and at["place"].nunique() > 1
        if said.nunique() > 1 or shared:
            each = "; ".join(
                f"{what}{whose and f' of the gradients of {whose}'} on rank {rank}"
                + (f" at {place}" if place else "")
                for (rank, what), whose, place in zip(said.items(), at["owner"], at["place"], strict=True)
            )
            mixed = (
                ": from different lines, so gradients of one may have been averaged with those of the other"
            )
            return f"collective {number}: {each}{mixed if said.nunique() == 1 else ''}"
    return ""


def _overlap(members: list[str]) -> bool:
    """Whether a rank is in two of these lists, as when ranks give `new_group` other lists."""
    named = [rank for held in members for rank in held.split(",") if held]
    return len(set(named)) < len(named)


def _and(ranks: list[int]) -> str:
    return " and ".join(map(str, ranks))

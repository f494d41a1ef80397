"""The table of `Ranks.status()`: what each rank process is, and what the group has done so far."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from labkit.ranks.pool import Member

COLUMNS = ("rank", "pid", "state", "memory_mb", "device", "backend", "calls", "restarts")


class Status(Sequence[dict[str, Any]]):
    """A row for each rank, and a line about the group.

    The columns are COLUMNS. `state` is 'idle', what the rank is doing, or how it ended. `memory_mb` is its own memory
    in MB, without what it shares with the process it was forked from; None if the system does not say. `calls` and
    `restarts` count those of the group.

    Args:
        rows: A dict for each rank.
        title: The line about the group.

    >>> row = dict(rank=0, pid=71, state="idle", memory_mb=12.0, device="cpu", backend="gloo", calls=3, restarts=0)
    >>> print(Status([row], "1 rank · gloo · cpu"))
    1 rank · gloo · cpu
    rank  pid  state  memory_mb  device  backend  calls  restarts
    0     71   idle   12         cpu     gloo     3      0
    """

    def __init__(self, rows: Sequence[dict[str, Any]], title: str):
        self.rows, self.title = list(rows), title

    def __getitem__(self, i: Any) -> Any:
        return self.rows[i]

    def __len__(self) -> int:
        return len(self.rows)

    def frame(self) -> pd.DataFrame:
        """Return the rows as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(COLUMNS))

    def _cells(self) -> list[list[str]]:
        return [[_said(row[column]) for column in COLUMNS] for row in self.rows]

    def __repr__(self) -> str:
        table = [list(COLUMNS), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join([self.title, *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        style = 'style="text-align:left;padding:2px 14px 2px 0"'
        head = "".join(f"<th {style}>{column}</th>" for column in COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td {style}>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._cells()
        )
        return (
            f"<div>{html.escape(self.title)}</div>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def status_of(members: Sequence[Member], busy: bool, title: str, **shared: Any) -> Status:
    """Return the status of a group.

    Args:
        members: its processes.
        busy: whether a call is under way.
        title: the line about the group.
        shared: what is the same in each row: device, backend, calls, restarts.
    """
    rows = [
        {
            "rank": member.rank,
            "pid": member.process.pid,
            "state": _state(member, busy),
            "memory_mb": None if member.dead else own_memory(member.process.pid),
            **shared,
        }
        for member in members
    ]
    return Status(rows, title)


def _state(member: Member, busy: bool) -> str:
    if member.process.closed:
        return "closed"
    return member.state if busy or member.dead or member.process.stopped else "idle"


def own_memory(pid: int) -> float | None:
    """Return a process' private memory in MB (10^6 bytes), from Linux' `smaps_rollup`; None without it.

    >>> import os
    >>> own_memory(os.getpid()) > 1
    True
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            kilobytes = [int(line.split()[1]) for line in file if line.startswith("Private_")]
    except (OSError, ValueError, IndexError):
        return None
    return sum(kilobytes) * 1024 / 1e6 if kilobytes else None


def _said(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float) else "" if value is None else str(value)

"""`Record`: the tables of what ran and what was compiled, with counts by execution, and `merge` for several ranks."""

from __future__ import annotations

import contextlib
import html
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import files
from labkit.records.chrome_trace import chrome_trace
from labkit.records.frame import Frames, merge_frames
from labkit.records.rank_difference import Difference, first_difference
from labkit.trace.events import marked, point_to_point

__all__ = ["TABLES", "Record", "merge", "table"]

COUNTS = ["rank", "forwards", "regions", "breaks", "at_collective", "collectives", "lookups"]
COUNTS += ["graph_runs", "graphs", "backend_graphs", "static_breaks", "skips", "recompiles"]


class Record:
    """What ran and what was compiled in a block of code, from one rank, or from several after `merge`.

    `labkit.record()` makes it. Every table has a `rank` column. Times (`start_us`, `end_us`) are microseconds from
    `origin_ns`, which is a time of `time.monotonic_ns()`: no setting of the system's clock moves them, and the ranks
    of one machine share it (`clock` is a name of that). Reading a table inside the `with` block raises ValueError: it
    is filled when the block ends.

    The profiler makes everything slower, small operators most of all: read proportions and counts here, and take
    times from `labkit.timing`.

    Args:
        found: The tables by name; None while the record is open.
        origin_ns: The time from which the tables count, in ns of `time.monotonic_ns()`.
        label: The backend, device and number of ranks, as in a `Report`.
        notes: What a reader has to know about gaps in the record.
        frames: Every compiled frame with its stages, where these were kept.
        clock: A name for the machine's clock.
    """

    def __init__(
        self,
        found: dict[str, pd.DataFrame] | None = None,
        origin_ns: int = 0,
        label: str = "",
        notes: list[str] | None = None,
        frames: Frames | None = None,
        clock: str = "",
    ) -> None:
        self._tables = found
        self._mark: Callable[[str], contextlib.AbstractContextManager[None]] | None = None
        self.origin_ns = origin_ns
        self.clock = clock
        self.label = label
        self.notes = list(notes or [])
        self._frames = frames

    # --- while it is open ---

    def forward(self) -> contextlib.AbstractContextManager[None]:
        """Mark one forward: `with rec.forward(): model(x)`. Without marks the whole block counts as one forward.

        Raises:
            ValueError: Outside the record's block, inside another mark, and in a record with marked steps.
        """
        return self._marked("forward")

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Mark one step that is more than a forward, such as forward, backward and optimizer of a training step.

        It is counted and numbered as a forward is (tables call it `forward`); figures and texts call it a step.

        Raises:
            ValueError: Outside the record's block, inside another mark, and in a record with marked forwards.
        """
        return self._marked("step")

    def _marked(self, kind: str) -> contextlib.AbstractContextManager[None]:
        if self._mark is None:
            raise ValueError(f"rec.{kind}() marks a {kind} inside the `with labkit.record() as rec:` block")
        return self._mark(kind)

    # --- its tables ---

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name.

        Raises:
            ValueError: While the record is open.
        """
        if self._tables is None:
            raise ValueError("this record is still open: read it after its `with labkit.record()` block")
        return self._tables

    @property
    def events(self) -> pd.DataFrame:
        """What ran, one row for each range: kind, name, thread, depth on that thread, compile_id, place where known.

        `group` is the name and the members of a collective's process group ('3: 0, 1'), where these are known.
        """
        return self.tables["events"]

    @property
    def segments(self) -> pd.DataFrame:
        """The main thread's time inside each forward, in pieces of one kind that neither overlap nor leave holes.

        Kinds: compute, collective, lookup, entry, python, and compile where Dynamo was still at work
        (`labkit.trace.segments` says what each of them is).
        """
        return self.tables["segments"]

    @property
    def graphs(self) -> pd.DataFrame:
        """Dynamo's graphs that ran or were compiled here, one row for each compiled function or rest of one.

        `calls` is how often its region ran in the marked forwards. `backend_graphs` is how many graphs the backend was
        given for it: 0 where there is nothing to compute (`ops` is 0 as well), 1 as a rule, and more where
        DDPOptimizer cut it at the borders of DDP's buckets. Each call runs all of them.
        """
        return self.tables["graphs"]

    @property
    def breaks(self) -> pd.DataFrame:
        """Every graph break (`kind` 'break') and every frame given up because of one ('skip').

        `executed` is how often it ran in the marked forwards, `at_collective` how many of these had a collective in
        the eager part that follows. A frame given up runs as plain Python and leaves no trace to count: its
        `executed` is 0. `during` says whether it was compiled in this record or before. `text` is all that torch
        said, without paths and addresses.
        """
        return self.tables["breaks"]

    @property
    def recompiles(self) -> pd.DataFrame:
        """Recompiles in this record: the guard that failed, and the place where the guarded value is used."""
        return self.tables["recompiles"]

    @property
    def compiles(self) -> pd.DataFrame:
        """The compiles of these graphs: seconds in all, in Dynamo and in the backend, and whether from a cache."""
        return self.tables["compiles"]

    @property
    def frames(self) -> Frames:
        """Every compiled frame with its stages: source, bytecode, graphs, guards, code.

        Raises:
            ValueError: If the record kept no stages; `record(stages=True)` does.
        """
        self.tables  # noqa: B018  raises while the record is open
        if self._frames is None:
            raise ValueError("this record kept no stages: use `labkit.record(stages=True)`")
        return self._frames

    @property
    def ranks(self) -> list[int]:
        """The ranks in this record, ascending."""
        return sorted(int(rank) for rank in self.events["rank"].unique())

    # --- what they add up to ---

    @property
    def counts(self) -> pd.DataFrame:
        """Count what ran, one row for each rank: regions, breaks, at_collective, collectives, lookups, graph_runs.

        These are counts by execution, per forward: `breaks` sums the column `executed` of `rec.breaks`, and the strip
        counts the same runs in its one forward (`labkit.records.rank_difference.break_times`). Several forwards that
        differ give their mean, and a message between two ranks is no collective. `breaks` counts every run of a
        region whose compile ended in a break. One break in a function that was inlined breaks its caller as well: of
        four disabled collectives in a block, let two be in a norm's `forward` and two in the block's own. The block's
        frame breaks at the call of a norm, then the norm's frame at its collective. So a block has 9 regions and 6
        breaks, and 4 of these stand directly at a collective (`at_collective`): 360, 240 and 160 in 40 blocks. With
        all four collectives in modules of their own it is 11, 8 and 4: 440, 320 and 160. `graph_runs` are the forward
        graphs that ran, as the backend was given them: none in a region without operations, and several in one whose
        graph DDPOptimizer cut.

        The other columns are static, they do not grow with the number of calls: `graphs` (Dynamo's, as `explain` and
        Dynamo's counters have them), `backend_graphs` (the same as the backend was given them, so that a graph that
        DDPOptimizer cut into five counts five times), `static_breaks` (compiles that ended in a break), `skips` (frames
        given up) and `recompiles`.

        Three things are counted otherwise than torch's own counters do. A graph without an operation is no graph here,
        and one in `unique_graphs`. A branch on data is a break here, and none in `counters["graph_break"]`. Of frames
        given up, an `nn.LSTM` is a skip here, and a break there. Marks hold for the thread that recorded; a region that
        runs inside a backend while it compiles is part of that compile; and torch keeps the metrics of 64 compiles, so
        of more frames that were compiled before labkit listened no graphs are known.
        """
        rows = []
        for rank in self.ranks:
            mine = {name: frame[frame["rank"] == rank] for name, frame in self.tables.items()}
            events, breaks, graphs = mine["events"], mine["breaks"], mine["graphs"]
            inside = events[events["forward"] >= 0]
            forwards = int((inside["kind"] == "forward").sum())
            kinds = inside[~inside["name"].map(point_to_point)]["kind"].value_counts()
            ended = breaks[breaks["kind"] == "break"]
            rows.append(
                {
                    "rank": rank,
                    "forwards": forwards,
                    "regions": kinds.get("region", 0) / max(forwards, 1),
                    "breaks": ended["executed"].sum() / max(forwards, 1),
                    "at_collective": ended["at_collective"].sum() / max(forwards, 1),
                    "collectives": kinds.get("collective", 0) / max(forwards, 1),
                    "lookups": kinds.get("lookup", 0) / max(forwards, 1),
                    "graph_runs": (graphs["calls"] * graphs["backend_graphs"]).sum() / max(forwards, 1),
                    "graphs": int((graphs["ops"] > 0).sum()),
                    "backend_graphs": int(graphs["backend_graphs"].sum()),
                    "static_breaks": len(ended),
                    "skips": int((breaks["kind"] == "skip").sum()),
                    "recompiles": len(mine["recompiles"]),
                }
            )
        found = pd.DataFrame(rows, columns=COUNTS)
        for column in COUNTS:
            if (found[column] % 1 == 0).all():
                found[column] = found[column].astype("int64")
        return found

    @property
    def breakdown(self) -> pd.DataFrame:
        """Sum up each forward's time by kind of segment.

        Returns:
            Columns rank, forward, kind and us (microseconds).
        """
        lengths = self.segments.assign(us=self.segments["end_us"] - self.segments["start_us"])
        return lengths.groupby(["rank", "forward", "kind"])["us"].sum().reset_index()

    def first_difference(self, ranks: Iterable[int] | None = None) -> Difference | None:
        """Find the first thing that ranks of a merged record did differently.

        Compared in order, forward by forward: regions (function and graph, whatever their ids), breaks (reason and
        place) and collectives (operation, and shapes when recorded with `shapes=True`).

        Args:
            ranks: The ranks to compare; all of them where this is None.

        Returns:
            The difference, or None where the ranks did the same.
        """
        events = self.events if ranks is None else self.events[self.events["rank"].isin(list(ranks))]
        return first_difference(events, self.graphs, self.breaks)

    def save_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write what ran as one trace in Chrome's JSON format: https://ui.perfetto.dev and chrome://tracing open it.

        Each rank is a process. Arrows connect the same collective across ranks.

        Args:
            path: Of the file. What was there is replaced.

        Returns:
            The path.

        Raises:
            ValueError: While the record is open.
            Unsaved: If the file cannot be written.
        """
        one_clock = bool(self.clock) or len(self.ranks) < 2
        trace = chrome_trace(self.tables, self.label, tuple(self.notes), one_clock)
        try:
            return files.replace(path, json.dumps(trace, separators=(",", ":"), allow_nan=False).encode())
        except OSError as error:
            raise files.Unsaved(f"cannot write {path}: {error.strerror or error}") from error

    # --- shown ---

    def __repr__(self) -> str:
        if self._tables is None:
            return "Record(open)"
        said: dict[str, list[int]] = {}
        unit = marked(self.events["name"])
        for row in self.counts.to_dict("records"):
            cut = (
                f" ({row['backend_graphs']} for the backend)" if row["backend_graphs"] > row["graphs"] else ""
            )
            text = (
                f"{_n(row['forwards'], unit)}, each with {_n(row['regions'], 'region')}, {_n(row['breaks'], 'break')}"
                f" ({_n(row['at_collective'])} at a collective), {_n(row['collectives'], 'collective')};"
                f" {_n(row['graphs'], 'graph')}{cut}, {_n(row['recompiles'], 'recompile')}"
            )
            said.setdefault(text, []).append(int(row["rank"]))
        parts = [f"rank {' and '.join(map(str, ranks))}: {text}" for text, ranks in said.items()]
        return "\n".join(
            [f"Record({' | '.join(parts) or 'nothing'})", *(f"  note: {note}" for note in self.notes)]
        )

    def _repr_html_(self) -> str:
        if self._tables is None:
            return html.escape(repr(self))
        parts = [self.counts.to_html(index=False, border=0, float_format=lambda v: f"{v:.4g}")]
        if len(self.breaks):
            columns = ["rank", "kind", "name", "reason", "place", "executed", "at_collective"]
            parts.append(self.breaks[columns].to_html(index=False, border=0))
        difference = self.first_difference() if len(self.ranks) > 1 else None
        lines = [*([f"First difference: {difference}"] if difference else []), *self.notes]
        parts += [f"<div>{html.escape(line)}</div>" for line in lines]
        if self.label:
            parts.append(f"<div style='opacity:.7'>{html.escape(self.label)}</div>")
        return "".join(parts)

    def __getstate__(self) -> dict[str, Any]:
        if self._tables is None:
            raise ValueError("this record is still open: send it after its `with labkit.record()` block")
        return {**self.__dict__, "_mark": None}


def _n(count: float, noun: str = "") -> str:
    text = f"{count:g}"
    return f"{text} {noun}{'' if count == 1 else 's'}" if noun else text


def merge(parts: Iterable[Any]) -> Any:
    """Join the records of several ranks into one, on one clock, or their frames: `merge(ranks.run(fn))`.

    Ranks of several machines have no clock in common: the times of each machine then begin at its own first event,
    and a note says so.

    Args:
        parts: One record of each rank, as a list or a PerRank; or Frames of each rank.

    Returns:
        A record with the rows of all ranks, and with frames if all records have them; or Frames.

    Raises:
        ValueError: If there is nothing to merge, a part is neither a record nor Frames, or two are of the same rank.
    """
    records = list(parts.values() if isinstance(parts, Mapping) else parts)
    if records and all(isinstance(part, Frames) for part in records):
        return merge_frames(records)
    if not records:
        raise ValueError("merge needs at least one record")
    strangers = [type(r).__name__ for r in records if not isinstance(r, Record)]
    if strangers:
        raise ValueError(f"merge takes records or Frames, one a rank, and got a {strangers[0]}")
    seen: set[int] = set()
    for record in records:
        twice = seen & set(record.ranks)
        if twice:
            raise ValueError(f"merge takes one record a rank, and rank {min(twice)} comes twice")
        seen |= set(record.ranks)
    clocks = {record.clock for record in records}
    origins = {c: min(r.origin_ns for r in records if r.clock == c) for c in clocks}
    together = {}
    for name in TABLES:
        parts = []
        for record in records:
            part = record.tables[name]
            if "start_us" in part.columns:
                later = (record.origin_ns - origins[record.clock]) / 1e3
                part = part.assign(start_us=part["start_us"] + later, end_us=part["end_us"] + later)
            parts.append(part)
        full = [part for part in parts if len(part)] or parts[:1]
        together[name] = pd.concat(full, ignore_index=True)
    labels = {record.label for record in records}
    notes = [f"rank {', '.join(map(str, r.ranks))}: {note}" for r in records for note in r.notes]
    if len(clocks) > 1:
        notes.append("these ranks share no clock: the times of each machine begin at its own first event")
    kept = [record._frames for record in records if record._frames is not None]
    frames = merge_frames(kept) if len(kept) == len(records) else None
    shared = records[0].clock if len(clocks) == 1 else ""
    label = labels.pop() if len(labels) == 1 else ""
    return Record(together, origins[records[0].clock], label, notes, frames, shared)


# --- The columns and dtypes of a record's tables ---

# table -> column -> dtype
TABLES: dict[str, dict[str, str]] = {
    "events": {
        "rank": "int64", "forward": "int64", "kind": "str", "name": "str", "start_us": "float64",
        "end_us": "float64", "thread": "str", "depth": "int64", "compile_id": "str", "place": "str",
        "shapes": "str", "group": "str",
    },
    "segments": {
        "rank": "int64", "forward": "int64", "kind": "str", "start_us": "float64", "end_us": "float64",
        "compile_id": "str", "name": "str",
    },
    "graphs": {
        "rank": "int64", "compile_id": "str", "name": "str", "place": "str", "ops": "int64",
        "collectives": "int64", "calls": "int64", "backend_graphs": "int64", "code": "str", "digest": "str",
    },
    "breaks": {
        "rank": "int64", "compile_id": "str", "kind": "str", "name": "str", "reason": "str", "place": "str",
        "executed": "int64", "at_collective": "int64", "during": "bool", "text": "str",
    },
    "recompiles": {
        "rank": "int64", "compile_id": "str", "name": "str", "reason": "str", "place": "str", "text": "str",
    },
    "compiles": {
        "rank": "int64", "compile_id": "str", "name": "str", "place": "str", "seconds": "float64",
        "dynamo_s": "float64", "backend_s": "float64", "cached": "object", "during": "bool",
    },
}  # fmt: skip


def table(name: str, rows: Iterable[dict[str, Any]], extra: Iterable[str] = ()) -> pd.DataFrame:
    """Make a table of a record, with its columns and dtypes even where there is no row.

    Args:
        name: A key of `TABLES`.
        rows: The rows, as dicts by column.
        extra: Columns of text after those of `TABLES`.
    """
    types = TABLES[name]
    made = pd.DataFrame(list(rows), columns=[*types, *extra])
    return made.astype(types)

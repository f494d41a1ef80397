"""The compiles that belong to a record, with their names in it, and how often each of them ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit import torch_compat
from labkit.records import reasons
from labkit.records.compile_log import Compile, CompileLog
from labkit.records.names import Names
from labkit.trace import Event

__all__ = ["KnownCompile", "RecordedCompiles", "UnwatchedRegion", "match_compiles"]

_CLOCK_SLACK_S = 0.002  # between what Python reads and what the profiler writes


@dataclass
class KnownCompile:
    """A compile of this record: its id, name and place here, and how often it ran."""

    id: str
    compile: Compile
    name: str
    place: str
    why: reasons.Why | None = None
    during: bool = False
    calls: int = 0
    at_collective: int = 0


@dataclass
class UnwatchedRegion:
    """A region that was compiled before the log began, with what torch's own list of metrics still says about it."""

    name: str
    place: str = ""
    ops: int = 0
    calls: int = 0

    @property
    def backend_graphs(self) -> int:
        """How many graphs the backend was given for it, as far as one can tell: DDPOptimizer may have cut it."""
        return int(self.ops > 0)


@dataclass
class RecordedCompiles:
    """All compiles of a record.

    Dynamo starts its ids over when it is reset, so one id may name several compiles. They are told apart by time, and
    the second gets the id '0/0 (2)'.
    """

    by_raw_id: dict[str, list[KnownCompile]] = field(default_factory=lambda: defaultdict(list))
    unwatched: dict[str, UnwatchedRegion] = field(default_factory=dict)  # compiled before the log began

    @property
    def known(self) -> dict[str, KnownCompile]:
        """Every compile by its id in this record, in the order they were made."""
        alike = (k for ks in self.by_raw_id.values() for k in ks)
        return {k.id: k for k in sorted(alike, key=lambda k: k.compile.started)}

    def of(self, event: Event) -> KnownCompile | None:
        """Return the compile that had this event's raw id at its time, or None."""
        before = [k for k in self.by_raw_id.get(event.compile_id, ()) if _there(k.compile, event)]
        return before[-1] if before else None

    def unwatched_id(self, raw_id: str) -> str:
        """Return the id in this record of a compile that the log did not see."""
        return f"{raw_id} (?)" if self.by_raw_id.get(raw_id) else raw_id

    def show(self, event: Event, events: Sequence[Event]) -> tuple[str, str]:
        """Set an event's compile id in this record, and return its name and place."""
        if not event.compile_id:
            return event.name, ""
        k = self.of(event)
        if k is None:
            event.compile_id = self.unwatched_id(event.compile_id)
            unwatched = self.unwatched[event.compile_id]
            name, place = unwatched.name, unwatched.place
        else:
            event.compile_id, name, place = k.id, k.name, k.place
        if event.kind in ("region", "compiled", "compile"):
            return name, place
        if event.kind == "collective" and k and k.compile.broke and k.why and not region_of(event, events)[1]:
            return event.name, k.why.place  # the eager call that the region broke for, or one right after it
        return event.name, ""

    def count_calls(self, events: Sequence[Event]) -> None:
        """Count the runs of every region inside forwards, and how many of these broke at a collective."""
        known = self.known
        eager: Counter[int] = Counter()  # region event -> collectives called outside its compiled graph
        has_graph_call = set()
        for event in events:
            if event.kind not in ("collective", "compiled"):
                continue
            region, compiled = region_of(event, events)
            if event.kind == "compiled":
                has_graph_call.add(region)
            elif not compiled:
                eager[region] += 1
        for index, event in enumerate(events):
            if event.kind != "region" or event.forward < 0:
                continue
            k = known.get(event.compile_id)
            if k is None:
                self.unwatched[event.compile_id].calls += 1
                continue
            k.calls += 1
            # a backend that runs the graph operator by operator shows the graph's own collectives as well
            own = 0 if index in has_graph_call else k.compile.collectives
            if k.compile.broke and eager[index] > own:
                k.at_collective += 1


def match_compiles(events: Sequence[Event], log: CompileLog, began: float, names: Names) -> RecordedCompiles:
    """Select the compiles that ran in a record, those made in it, and frames given up earlier that still are.

    Args:
        events: The record's events.
        log: This process's log of compiles.
        began: When the record was opened, in seconds of `time.monotonic()`.
        names: How functions are named.
    """
    everything = log.known()
    by_raw_id: dict[str, list[Compile]] = defaultdict(list)
    for c in everything:
        by_raw_id[c.id].append(c)
    ran: set[int] = set()
    raw_ids: set[str] = set()
    for event in events:
        if event.compile_id:
            before = [c for c in by_raw_id.get(event.compile_id, ()) if _there(c, event)]
            if before:
                ran.add(id(before[-1]))
            else:
                raw_ids.add(event.compile_id)
    alive = log.alive()
    compiles = RecordedCompiles()
    for c in everything:
        during = c.started >= began
        if during or id(c) in ran or (c.skipped and c.epoch == alive):
            same_id = compiles.by_raw_id[c.id]
            here = c.id if not same_id else f"{c.id} ({len(same_id) + 1})"
            same_id.append(_known(here, c, everything, during, names))
    for metrics in torch_compat.compilation_metrics() if raw_ids else []:
        if metrics.compile_id in raw_ids and metrics.co_name:
            at = (metrics.co_name, metrics.co_filename or "", metrics.co_firstlineno or 0)
            found = UnwatchedRegion(*names.function(*at), metrics.graph_op_count or 0)
            compiles.unwatched[compiles.unwatched_id(metrics.compile_id)] = found
    for raw_id in raw_ids:
        compiles.unwatched.setdefault(compiles.unwatched_id(raw_id), UnwatchedRegion(f"region {raw_id}"))
    return compiles


def _there(c: Compile, event: Event) -> bool:
    """Whether this compile can be the event's own: it had begun when a compile ended, or when code was entered."""
    if event.kind == "compile":
        return c.started <= event.end / 1e9 + _CLOCK_SLACK_S
    # Ids begin anew when Dynamo is reset, and the next 0/0 can begin within the slack after the last call of this one
    began = c.started if c.ready is None else c.ready
    return began <= event.start / 1e9 + _CLOCK_SLACK_S


def _known(here: str, c: Compile, everything: Sequence[Compile], during: bool, names: Names) -> KnownCompile:
    origin = c
    if not c.filename:  # a frame given up before tracing: its earlier compiles know where it stands
        frame = c.id.rpartition("/")[0]
        alike = [o for o in everything if o.epoch == c.epoch and o.id.rpartition("/")[0] == frame]
        origin = next((o for o in alike if o.filename), c)
    name, place = names.function(origin.co_name, origin.filename, origin.line) if origin.co_name else ("", "")
    if origin.filename.startswith("<eval_with_key>"):  # a graph that torch wrote: its number says nothing
        name, place = ("backward (compiled autograd)" if c.id.startswith("!") else "generated graph"), ""
    why = None
    if c.broke or c.skipped:
        why = reasons.graph_break(c.break_text, names) if c.break_text else reasons.limit(c.failure, place)
    return KnownCompile(here, c, name or f"frame {here}", place, why, during)


def region_of(event: Event, events: Sequence[Event]) -> tuple[int, bool]:
    """The region an event runs in (an index; -1: none), and whether it runs in that region's compiled graph."""
    compiled = False
    at = event.parent
    while at >= 0 and events[at].kind != "region":
        compiled = compiled or events[at].kind == "compiled"
        at = events[at].parent
    return at, compiled

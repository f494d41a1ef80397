"""`labkit.record()`: record a block of code with the profiler and torch's structured trace."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit import places, report, torch_compat
from labkit.records import reasons
from labkit.records.compile_log import CompileLog, install
from labkit.records.frame_builder import frames_of
from labkit.records.names import Names
from labkit.records.record import Record, table
from labkit.records.recorded_compiles import RecordedCompiles, match_compiles
from labkit.trace import Event, RawEvent, partition, tidy
from labkit.trace.profiler import BODY, FORWARD, STEP, Profile, shared_clock
from labkit.trace.regions import RegionListener, add_unprofiled_threads

__all__ = ["build_record", "record"]

_busy = threading.Lock()


@contextlib.contextmanager
def record(*, stages: bool = False, shapes: bool = False, operators: bool = True) -> Iterator[Record]:
    """Record what runs and what is compiled in a block of code, in a rank or in any single process.

    Args:
        stages: Keep every stage of what is compiled inside the block: `rec.frames`, and in `rec.graphs` the columns
            `aot_code` and `inductor_code`.
        shapes: Add the shapes of tensors to events, so that `first_difference` compares collectives by shape. Every
            operator gets a little slower.
        operators: Run a profiler. Without one, regions and breaks are counted as well, at next to no cost; operators,
            collectives, cache lookups and times are not recorded. On torch 2.11 regions without a graph cannot be seen
            this way, nor the breaks in which they end; the record then has a note of it.

    Yields:
        A `Record`, which can be read when the block has ended. An exception in the block passes through, and the record
        then holds what ran until it was raised.

    Raises:
        ValueError: Inside another record, and while another torch profiler runs.

    A block ends when the collectives that it began over gloo have; wait for an `irecv` inside it, since gloo writes
    the end of one into the profile (see `labkit.trace.collectives_end`).

    Everything is slower under the profiler, small operators most of all, so shares of a recorded forward are not those
    of one without a record. Read counts and order from a record, and times from `labkit.timing`. Warm up first, or mark
    forwards and look at the later ones: what is compiled inside the block appears in its time (segments of kind
    `compile`).

    Sources: torch.profiler (kineto) and torch's structured trace (torch/_logging/_internal.py).

    >>> import torch
    >>> def twice(x):
    ...     return x.sin() + x.sin()
    >>> compiled = torch.compile(twice, backend="eager")
    >>> with record() as rec:
    ...     for _ in range(3):
    ...         with rec.forward():
    ...             _ = compiled(torch.ones(4))
    >>> rec
    Record(rank 0: 3 forwards, each with 1 region, 0 breaks (0 at a collective), 0 collectives; 1 graph, 0 recompiles)
    """
    if not _busy.acquire(blocking=False):
        raise ValueError(
            "a record is already open in this process: records do not nest; end the outer one first"
        )
    try:
        log = install()
        regions = RegionListener(log.id_of)
        profile = Profile(shapes=shapes) if operators else regions
        rec = Record()
        kept, log.keep_stages = log.keep_stages, stages
        began = time.monotonic()
        try:
            profile.start()
            if operators:
                regions.start()  # beside the profiler, which does not follow every thread
            rec._mark = _marks(profile)
            try:
                with profile.mark(BODY):
                    yield rec
            finally:
                rec._mark = None
                entered = regions.stop()
                raw = (
                    add_unprofiled_threads(profile.stop(), entered)
                    if isinstance(profile, Profile)
                    else entered
                )
                # also after an exception in the block: what ran until then is worth reading
                _fill(rec, build_record(raw, log, began, stages, operators))
                if isinstance(profile, Profile) and profile.note:
                    rec.notes.append(profile.note)
        finally:
            log.keep_stages = kept
    finally:
        _busy.release()


def _fill(rec: Record, done: Record) -> None:
    rec.__dict__.update(done.__dict__)


def _marks(profile: Profile | RegionListener) -> Any:
    """`rec.forward()` and `rec.step()` of one record: marks of one kind, which do not nest."""
    inside = threading.Lock()
    kinds: list[str] = []

    @contextlib.contextmanager
    def mark(kind: str) -> Iterator[None]:
        if not inside.acquire(blocking=False):
            raise ValueError("a mark is already open: rec.forward() and rec.step() do not nest")
        try:
            name = {"forward": FORWARD, "step": STEP}[kind]
            kinds.append(kind)
            if kinds[0] != kind:
                raise ValueError(f"this record marks {kinds[0]}s: rec.forward() and rec.step() do not mix")
            with profile.mark(name):
                yield
        finally:
            inside.release()

    return mark


# --- Builds a Record from raw profiler events and the compiles in the log ---

STAGES = ("aot_code", "inductor_code")
_OP = re.compile(r"^\w+::?\w")  # aten::mm, c10d::allreduce_, shm:all_reduce


def build_record(
    raw: Sequence[RawEvent], log: CompileLog, began: float, stages: bool, operators: bool = True
) -> Record:
    """Build the Record of one rank.

    Args:
        raw: The events of the profile, or of a listener to regions.
        log: This process's log of compiles.
        began: When the record was opened, in seconds of `time.monotonic()`.
        stages: Whether every stage of what was compiled was kept.
        operators: Whether a profiler ran.
    """
    events = tidy(raw)
    names = Names()
    compiles = match_compiles(events, log, began, names)
    shown = [compiles.show(event, events) for event in events]
    compiles.count_calls(events)
    rank = _rank()
    origin = min((event.start for event in events), default=0)
    rows = {
        "events": _events(events, shown, origin),
        "segments": _segments(events, compiles, origin) if operators else [],
        "graphs": _graphs(compiles, stages),
        "breaks": _breaks(compiles),
        "recompiles": _recompiles(compiles, names),
        "compiles": _compiles(compiles),
    }
    tables = {
        name: table(
            name, ({"rank": rank, **row} for row in found), STAGES if stages and name == "graphs" else ()
        )
        for name, found in rows.items()
    }
    frames = frames_of(compiles, rank) if stages else None
    notes = _notes(events, compiles, log)
    if not operators:
        notes.append("only regions were kept: operators, collectives and lookups were not counted")
        if not torch_compat.sees_every_region():
            notes.append(
                "this torch shows only regions with a graph: those without one, and the breaks in which they end, were"
                " not counted; `labkit.record()` counts them"
            )
    return Record(tables, origin, _label(), notes, frames, shared_clock())


def _events(events: Sequence[Event], shown: Sequence[tuple[str, str]], origin: int) -> list[dict[str, Any]]:
    calls = any(e.kind == "collective" for e in events)
    group_of = torch_compat.groups_by_time() if calls else None
    return [
        {
            "forward": e.forward,
            "kind": e.kind,
            "name": name,
            "start_us": (e.start - origin) / 1e3,
            "end_us": (e.end - origin) / 1e3,
            "thread": e.thread,
            "depth": e.depth,
            "compile_id": e.compile_id,
            "place": place,
            "shapes": e.shapes,
            "group": group_of(e.start, e.end) if group_of and e.kind == "collective" else "",
        }
        for e, (name, place) in zip(events, shown, strict=True)
    ]


def _segments(events: Sequence[Event], compiles: RecordedCompiles, origin: int) -> list[dict[str, Any]]:
    known = compiles.known
    broken = {i for i, k in known.items() if k.compile.broke}
    empty = {i for i, k in known.items() if k.compile.has_code and not k.compile.ops}
    functions = {i: k.name for i, k in known.items()} | {i: u.name for i, u in compiles.unwatched.items()}
    return [
        {
            "forward": s.forward,
            "kind": s.kind,
            "start_us": (s.start - origin) / 1e3,
            "end_us": (s.end - origin) / 1e3,
            "compile_id": s.compile_id,
            # operators and collectives keep their own name, the rest belongs to the function it runs in
            "name": s.name if _OP.match(s.name) else functions.get(s.compile_id, s.name),
        }
        for s in partition(events, broken, empty)
    ]


def _graphs(compiles: RecordedCompiles, stages: bool) -> list[dict[str, Any]]:
    rows = []
    for i, k in compiles.known.items():
        c = k.compile
        if not c.has_code:
            continue
        row = {"compile_id": i, "name": k.name, "place": k.place, "ops": c.ops, "collectives": c.collectives}
        row |= {"calls": k.calls, "backend_graphs": c.backend_graphs}
        row |= {"code": places.rewrite(c.graph), "digest": c.digest}
        if stages:
            row["aot_code"] = places.rewrite(c.joined("aot_forward", "aot_backward"))
            row["inductor_code"] = places.rewrite(c.joined("inductor", "inductor_backward"))
        rows.append(row)
    for i, u in compiles.unwatched.items():
        row = {"compile_id": i, "name": u.name, "place": u.place, "ops": u.ops, "collectives": 0}
        row |= {"calls": u.calls, "backend_graphs": u.backend_graphs, "code": "", "digest": ""}
        rows.append(row | (dict.fromkeys(STAGES, "") if stages else {}))
    return rows


def _breaks(compiles: RecordedCompiles) -> list[dict[str, Any]]:
    return [
        {
            "compile_id": i,
            "kind": "break" if k.compile.broke else "skip",
            "name": k.name,
            "reason": k.why.reason,
            "place": k.why.place,
            "executed": k.calls if k.compile.broke else 0,
            "at_collective": k.at_collective,
            "during": k.during,
            "text": k.why.text,
        }
        for i, k in compiles.known.items()
        if k.why
    ]


def _recompiles(compiles: RecordedCompiles, names: Names) -> list[dict[str, Any]]:
    rows = []
    for i, k in compiles.known.items():
        made = k.compile.has_code or not k.compile.finished
        if k.during and k.compile.reasons and made:
            why = reasons.recompile(k.compile.reasons, k.place, names)
            rows.append(
                {"compile_id": i, "name": k.name, "reason": why.reason, "place": why.place, "text": why.text}
            )
    return rows


def _compiles(compiles: RecordedCompiles) -> list[dict[str, Any]]:
    rows = []
    for i, k in compiles.known.items():
        c = k.compile
        seconds, backend = c.seconds or 0.0, c.backend_s or 0.0
        row = {"compile_id": i, "name": k.name, "place": k.place, "cached": c.cached, "during": k.during}
        rows.append({**row, "seconds": seconds, "dynamo_s": seconds - backend, "backend_s": backend})
        if c.backward_s:
            row["name"] = f"{k.name}, backward"
            rows.append({**row, "seconds": c.backward_s, "dynamo_s": 0.0, "backend_s": c.backward_s})
    return rows


def _notes(events: Sequence[Event], compiles: RecordedCompiles, log: CompileLog) -> list[str]:
    notes = []
    if not events:
        notes.append("the profiler saw nothing: another profiler inside the block takes its events away")
    if compiles.unwatched:
        notes.append(
            f"{len(compiles.unwatched)} regions were compiled before labkit listened, so their breaks are unknown, and "
            "whether DDPOptimizer cut their graphs: call labkit.records.install() before compiling"
        )
    if log.error:
        notes.append(f"a record of torch's structured trace could not be read ({log.error})")
    return notes


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _label() -> str:
    """The run label of this process's default group; '' when there is none or labkit has no label for it."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    world = dist.get_world_size()
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # a rank on the CPU never asks for one
    gpus = min(world, torch.cuda.device_count()) if on_gpu else 0
    try:
        return report.run_label(dist.get_backend(), "cuda" if on_gpu else "cpu", world, gpus)
    except ValueError:
        return ""

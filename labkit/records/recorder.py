"""`labkit.record()`: record a block of code with the profiler and torch's structured trace."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from labkit.records.compile_log import install
from labkit.records.record import Record
from labkit.records.record_builder import build_record
from labkit.trace.profiler import BODY, FORWARD, STEP, Profile
from labkit.trace.regions import RegionListener, add_unprofiled_threads

__all__ = ["record"]

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
            collectives, lookups and times are not recorded. On torch 2.11 regions without a graph cannot be seen this
            way, nor the breaks in which they end; the record then has a note of it.

    Yields:
        A `Record`, which can be read when the block has ended. An exception in the block passes through, and the record
        then holds what ran until it was raised.

    Raises:
        ValueError: Inside another record, and while another torch profiler runs.

    A block ends when the collectives that it began over gloo have; wait for an `irecv` inside it, since gloo writes
    the end of one into the profile (see `labkit.trace.collectives_end`).

    Everything is slower under the profiler, small operators most of all: read proportions and counts from a record,
    and times from `labkit.timing`. Warm up first, or mark forwards and look at the later ones: what is compiled
    inside the block appears in its time (segments of kind `compile`).

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

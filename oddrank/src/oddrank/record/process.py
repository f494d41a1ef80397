"""`record()`: the tables of a block of code in the running process, from the compiler, its trace and one profile."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from oddrank import torch_names
from oddrank.places import is_library, label
from oddrank.record import trace_log
from oddrank.record.collectives import Calls, collectives_of
from oddrank.record.compiles import Compiles, Try
from oddrank.record.nodes import COLLECTIVE
from oddrank.record.payloads import resumed
from oddrank.record.profile import BODY, FORWARD, STEP, Profile, RawEvent, shared_clock
from oddrank.record.regions import RegionListener, add_unprofiled_threads
from oddrank.record.segments import partition
from oddrank.record.source import Sources
from oddrank.record.tables import NAMES, Compile, Range, Segment, Table, Tables
from oddrank.record.timeline import Event, tidy
from oddrank.run_label import run_label

if TYPE_CHECKING:
    from oddrank.stages.frames import Frames

__all__ = ["Log", "Record", "install", "record"]

_CLOCK_SLACK_S = 0.002  # between what Python reads and what the profiler writes
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


class Log(logging.Handler):
    """Every compile of this process, from the moment this was installed. It never raises into a compile.

    Attributes:
        compiles: What is known of each.
        error: The last thing that could not be read.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.compiles = Compiles(None, Sources(), file_name=torch_names.traced_file)
        self.compiles.keep_stages = False
        self.compiles.listening = True
        self.error = ""
        self._made: dict[
            int, tuple[weakref.ref[CodeType], str]
        ] = {}  # code that Dynamo made, and its compile's id
        self._hooked = False

    def hook(self) -> None:
        """Hear of bytecode and graphs from now on; called before others replace these functions for a while."""
        if not self._hooked:
            self._hooked = True
            torch_names.bytecode_hook(self._bytecode)
            torch_names.on_graph(self._graph)

    def emit(self, record: logging.LogRecord) -> None:
        """Take one entry of torch's trace."""
        try:
            entry = trace_log.of_record(record.metadata, record.payload)  # type: ignore[attr-defined]
            if entry is None:
                return
            if entry.kind == "dynamo_start":
                self.hook()  # not before: it needs Dynamo, which takes seconds to import
            self.compiles.feed(entry, time.monotonic())
        except Exception as error:  # a reader of traces must not break what it reads
            self.error = f"{type(error).__name__}: {error}"

    def current(self) -> Try | None:
        """The compile that this thread is in."""
        return self.compiles.tries.get((self.compiles.epoch, torch_names.current_compile_id()))

    def _bytecode(self, before: CodeType, after: CodeType) -> None:
        """What Dynamo calls with the bytecode it read and the one it made of it."""
        try:
            if (one := self.current()) is None:
                return
            one.ready = time.monotonic()
            made, key = self._made, id(after)
            made[key] = (weakref.ref(after, lambda _: made.pop(key, None)), one.id)
            if self.compiles.keep_stages:
                one.before, one.after = before, after
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _graph(self, name: str, graph: Any, traced: Sequence[CodeType]) -> None:
        """What is called with each graph: it has the whole stack of an operator, and the trace its last line."""
        try:
            if (one := self.current()) is None:
                return
            one.callers = [_caller(node) for node in graph.graph.nodes if COLLECTIVE.search(str(node.target))]
            one.called = {
                node.name: caller
                for node in graph.graph.nodes
                if node.op.startswith("call_") and (caller := _outside(node)) is not None
            }
            own = (one.row.file, one.row.line)
            places = ((code.co_filename, code.co_firstlineno, code.co_name) for code in traced)
            one.inlined = tuple(dict.fromkeys(at for at in places if not is_library(at[0]) and at[:2] != own))
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def refused(self, code: CodeType, why: str) -> None:
        """Take a frame that Dynamo gives up before a compile of it begins; those of Python's own code are left out."""
        if not label(code.co_filename).startswith(("python/", "<frozen ")):
            self.compiles.refused(code, why, time.monotonic(), _callers())

    def id_of(self, code: CodeType) -> str:
        """The id of the compile that made some code; '' where it was made before the log began."""
        made, name = self._made.get(id(code), (None, ""))
        return name if made is not None and made() is code else torch_names.compile_id_of(code)

    def epoch(self) -> int:
        """The current epoch: one more than the last one seen where Dynamo was reset since."""
        return self.compiles.epoch_now(torch_names.dynamo_frames_seen())


def _callers() -> list[tuple[str, int, str]]:
    """The frames outside of Dynamo, outermost first."""
    found: list[tuple[str, int, str]] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append((code.co_filename, frame.f_lineno, code.co_name))
        if label(code.co_filename) == "torch/_dynamo/convert_frame.py":
            found.clear()  # the program's frames lie outside of these
        frame = frame.f_back
    return found[::-1]


def _outside(node: Any) -> tuple[str, int, str] | None:
    """The program's line that led to an operator which torch places in a library; None for any other."""
    stack = node.meta.get("stack_trace") or ""
    last = _FRAME.search(stack, max(stack.rfind('  File "'), 0))
    caller = _caller(node) if last and is_library(last[1]) else None
    return caller if caller and not is_library(caller[0]) else None


def _caller(node: Any) -> tuple[str, int, str]:
    frames = [
        (file, int(line), func) for file, line, func in _FRAME.findall(node.meta.get("stack_trace") or "")
    ]
    mine = [frame for frame in frames if not is_library(frame[0])]
    file, line, func = (mine or frames or [("", 0, "")])[-1]
    return file, line, resumed(func)[0]


_log: Log | None = None
_installing = threading.Lock()


def install() -> Log:
    """Start to log this process's compiles until it ends, and return the log. A second call starts nothing.

    Ranks call this when they start, so that `record()` knows code that was compiled before it began. TORCH_TRACE and
    its files are left as they are. Calls of compiled code cost nothing more; compiling costs what it takes torch to
    print its graphs and guards, about 10 ms for a small graph.

    >>> install() is install()
    True
    """
    global _log
    with _installing:
        if _log is None:
            _log = Log()
            # a backward compiles where a compiled function runs, and there Dynamo would compile what listens to it
            heard = Log.emit.__code__, Log._bytecode.__code__, Log._graph.__code__
            torch_names.hide_from_dynamo(*heard, calls=True)
        logger = torch_names.trace_logger()
        if _log not in logger.handlers:
            # first in line: torch's own handler removes itself from the list on its first record, which would make
            # the logger skip the handler after it
            logger.handlers.insert(0, _log)
            if logger.level == logging.NOTSET or logger.level > logging.DEBUG:
                logger.setLevel(logging.DEBUG)
            logger.propagate = False
        return _log


class Record(Tables):
    """The tables of a block of code; they can be read when the block has ended.

    Attributes:
        frames: What was compiled, with its stages as text (`oddrank.stages`); of `record(stages=True)` alone.
    """

    frames: Frames

    def __init__(self) -> None:
        self._mark: Callable[[str], contextlib.AbstractContextManager[None]] | None = None

    def forward(self) -> contextlib.AbstractContextManager[None]:
        """Mark one forward: `with rec.forward(): model(x)`. Without marks the whole block counts as one forward.

        Raises:
            ValueError: Outside the record's block, inside another mark, and in a record with marked steps.
        """
        return self._marked("forward")

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Mark one step that is more than a forward: forward, backward and optimizer. It is counted as a forward is.

        Raises:
            ValueError: Outside the record's block, inside another mark, and in a record with marked forwards.
        """
        return self._marked("step")

    def _marked(self, kind: str) -> contextlib.AbstractContextManager[None]:
        if self._mark is None:
            raise ValueError(f"rec.{kind}() marks a {kind} inside the `with record() as rec:` block")
        return self._mark(kind)

    def __getattr__(self, name: str) -> Any:
        if name == "frames" and "compiles" in self.__dict__:
            raise ValueError("this record kept no stages: ask for them with `record(stages=True)`")
        if name in (*NAMES, "profiled", "frames"):
            raise ValueError("this record is still open: read it after its `with record()` block")
        raise AttributeError(name)

    def __repr__(self) -> str:
        if "compiles" not in self.__dict__:
            return "Record(open)"
        return "\n".join(f"{row}".replace("Count(", "Record(") for row in self.counts)


_busy = threading.Lock()


@contextlib.contextmanager
def record(*, stages: bool = False, shapes: bool = False, operators: bool = True) -> Iterator[Record]:
    """Record what runs and what is compiled in a block of code, in a rank or in any single process.

    Args:
        stages: Keep what comes after Dynamo's graph: ATen graphs, guards, Inductor's code, bytecode. The record's
            `frames` have them as text.
        shapes: Add the shapes of tensors. Every operator gets a little slower.
        operators: Run a profiler. Without one, regions and breaks are counted as well, at next to no cost; operators,
            collectives, lookups and times are not recorded. On torch 2.11 regions without a graph cannot be seen this
            way, nor the breaks in which they end; a note says so.

    Yields:
        A `Record`, which can be read when the block has ended. An exception in the block passes through, and the record
        then holds what ran until it was raised.

    Raises:
        ValueError: Inside another record, and while another torch profiler runs.

    Everything is slower under the profiler, small operators most of all: read counts and order here, and take times
    from rounds without it. Warm up first, or mark forwards and look at the later ones: what is compiled inside the
    block appears in its time. Wait for an `irecv` over gloo inside the block (see `collectives_end`).

    Sources: torch.profiler (kineto) and torch's structured trace (torch/_logging/_internal.py).

    >>> import torch
    >>> def twice(x):
    ...     return x.sin() + x.sin()
    >>> compiled = torch.compile(twice, backend="eager")
    >>> with record() as rec:
    ...     for _ in range(3):
    ...         with rec.forward():
    ...             _ = compiled(torch.ones(4))
    >>> rec.counts[0].forwards, rec.counts[0].regions, rec.counts[0].breaks
    (3, 1, 0)
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
        kept, log.compiles.keep_stages = log.compiles.keep_stages, stages
        log.compiles.left_out, log.error = 0, ""  # a record tells of its own
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
                raw = regions.stop()
                if isinstance(profile, Profile):
                    raw = add_unprofiled_threads(profile.stop(), raw)
                # also after an exception in the block: what ran until then is worth reading
                rec.__dict__.update(tables_of(raw, log, began, operators, stages).__dict__)
                if isinstance(profile, Profile) and profile.note:
                    rec.notes.append(profile.note)
        finally:
            log.compiles.keep_stages = kept
    finally:
        _busy.release()


def _marks(profile: Profile | RegionListener) -> Any:
    """`rec.forward()` and `rec.step()` of one record: marks of one kind, which do not nest."""
    inside = threading.Lock()
    kinds: list[str] = []

    @contextlib.contextmanager
    def mark(kind: str) -> Iterator[None]:
        if not inside.acquire(blocking=False):
            raise ValueError("a mark is already open: rec.forward() and rec.step() do not nest")
        try:
            kinds.append(kind)
            if kinds[0] != kind:
                raise ValueError(f"this record marks {kinds[0]}s: rec.forward() and rec.step() do not mix")
            with profile.mark({"forward": FORWARD, "step": STEP}[kind]):
                yield
        finally:
            inside.release()

    return mark


# --- from what was heard to tables ---


def tables_of(
    raw: Sequence[RawEvent], log: Log, began: float, operators: bool = True, stages: bool = False
) -> Tables:
    """The tables of one rank.

    Args:
        raw: The events of the profile, or of a listener to regions.
        log: This process's compiles.
        began: When the record was opened, in seconds of `time.monotonic()`.
        operators: Whether a profiler ran.
        stages: Add `frames`, the compiles with their stages as text.
    """
    log.compiles.sources = Sources()  # a file may have been edited, and loaded again, since the last record
    events = tidy(raw)
    rank = log.compiles.rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    held = _held(events, log)
    now = log.epoch()
    ran = {id(one) for one in held.values()}
    chosen = log.compiles.chosen(
        lambda one: one.started >= began or id(one) in ran or (one.gave_up and one.epoch == now)
    )
    made = log.compiles.tables(chosen)
    made.torch = torch.__version__  # the entry that has it may have been written before this listened
    for one, row in chosen:
        row.during, row.runs = one.started >= began, 0
    rows = {id(one): row for one, row in chosen}
    of_event = {i: rows[id(one)] for i, one in held.items()}
    unwatched = _unwatched(events, of_event, rank)
    made.compiles += unwatched.values()
    for i, event in enumerate(events):
        if event.compile_id:
            held_by = of_event.get(i) or unwatched[event.compile_id]
            event.compile_id = held_by.id
            if event.kind == "region" and event.forward >= 0:
                held_by.runs = (held_by.runs or 0) + 1
    origin = min((event.start for event in events), default=0)
    made.profiled = {rank: sum(event.kind == "forward" and event.forward >= 0 for event in events)}
    calls = Calls()
    by_id = {row.id: row for row in made.compiles}
    made.collectives = collectives_of(events, by_id, made.marks, calls, rank)
    made.ranges = Table(Range, (_range(e, rank, origin, calls) for e in events))
    if operators:
        made.segments = Table(Segment, _segments(events, made.compiles, rank, origin))
    made.origin_ns, made.clock, made.label = origin, shared_clock(), _label()
    made.notes += _notes(events, unwatched, log, operators)
    if stages:
        from oddrank.stages.frames import frames_of

        vars(made)["frames"] = frames_of(chosen, made.marks)
    return made


def _held(events: Sequence[Event], log: Log) -> dict[int, Try]:
    """The compile that each event's code came from: the last one of its id that was there at its time."""
    by_id: dict[str, list[Try]] = {}
    for one in list(log.compiles.tries.values()):
        by_id.setdefault(one.id, []).append(one)
    found = {}
    for i, event in enumerate(events):
        before = [one for one in by_id.get(event.compile_id, ()) if event.compile_id and _there(one, event)]
        if before:
            found[i] = before[-1]
    return found


def _there(one: Try, event: Event) -> bool:
    """Whether this compile can be the event's own: it had begun when a compile ended, or when code was entered."""
    if event.kind == "compile":
        return one.started <= event.end / 1e9 + _CLOCK_SLACK_S
    # ids begin anew when Dynamo is reset, and the next 0/0 can begin within the slack after the last call of this one
    began = one.started if one.ready is None else one.ready
    return began <= event.start / 1e9 + _CLOCK_SLACK_S


def _unwatched(events: Sequence[Event], known: dict[int, Compile], rank: int) -> dict[str, Compile]:
    """Rows of code that was compiled before the log began, with what torch's own list of metrics still says of it."""
    ids = dict.fromkeys(e.compile_id for i, e in enumerate(events) if e.compile_id and i not in known)
    taken = {row.id for row in known.values()}
    found = {
        name: Compile(rank, f"{name} (?)" if name in taken else name, during=False, runs=0) for name in ids
    }
    for metrics in torch_names.compilation_metrics() if ids else ():
        row = found.get(metrics.compile_id)
        if row is not None and metrics.co_name:
            row.func, row.resume = resumed(metrics.co_name)
            row.file, row.line = metrics.co_filename or "", metrics.co_firstlineno or 0
            row.operators = metrics.graph_op_count or 0
            row.graphs = int(row.operators > 0)
            row.outcome = "graph" if row.operators else "empty"
    return found


def _range(event: Event, rank: int, origin: int, calls: Calls) -> Range:
    start, end = (event.start - origin) / 1e3, (event.end - origin) / 1e3
    group = calls.between(event.start, event.end).group if event.kind == "collective" else ""
    about = (event.thread, event.depth, event.compile_id, event.shapes, group, *event.spot)
    return Range(rank, event.forward, event.kind, event.name, start, end, *about)


def _segments(
    events: Sequence[Event], compiles: Sequence[Compile], rank: int, origin: int
) -> Iterator[Segment]:
    broken = {row.id for row in compiles if row.broke}
    empty = {row.id for row in compiles if row.outcome == "empty"}
    functions = {row.id: row.name for row in compiles}
    for s in partition(events, broken, empty):
        # operators and collectives keep their own name, the rest belongs to the function it runs in
        name = s.name if re.match(r"^\w+::?\w", s.name) else functions.get(s.compile_id, s.name)
        start, end = (s.start - origin) / 1e3, (s.end - origin) / 1e3
        yield Segment(rank, s.forward, s.kind, start, end, s.compile_id, name)


def _notes(events: Sequence[Event], unwatched: dict[str, Compile], log: Log, operators: bool) -> list[str]:
    notes = [note] if (note := torch_names.untried(torch.__version__)) else []
    if not events:
        notes.append("the profiler saw nothing: another profiler inside the block takes its events away")
    if unwatched:
        notes.append(
            f"{len(unwatched)} regions were compiled before oddrank listened, so their breaks are unknown, and whether"
            " DDP cut their graphs: call oddrank.record.install() before compiling"
        )
    if log.error:
        notes.append(f"an entry of torch's structured trace could not be read ({log.error})")
    if not operators:
        notes.append("only regions were kept: operators, collectives and lookups were not counted")
        if not torch_names.sees_every_region():
            notes.append(
                "this torch shows only regions with a graph: those without one, and the breaks in which they end, were"
                " not counted; `record()` with operators counts them"
            )
    return notes


def _label() -> str:
    """The run label of this process's default group; '' where there is none, or no label for it."""
    if "torch.distributed" not in sys.modules or not (dist.is_available() and dist.is_initialized()):
        return ""
    world = dist.get_world_size()
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # a rank on the CPU never asks for one
    gpus = min(world, torch.cuda.device_count()) if on_gpu else 0
    try:
        return run_label(dist.get_backend(), "cuda" if on_gpu else "cpu", world, gpus)
    except ValueError:
        return ""

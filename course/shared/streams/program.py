"""A stream program: the ops that one host issues, in order, checked as they are written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from course.shared.streams.ops import (
    DEFAULT,
    Alloc,
    Free,
    Kernel,
    Op,
    Record,
    RecordStream,
    StreamError,
    Synchronize,
    Wait,
    WaitStream,
    names,
)

__all__ = ["Program"]


class Program:
    """What one host issues: kernels, events, waits, allocations, in the order of the calls. Nothing runs yet.

    streams: the names of the side streams; 'default' is always there. unit: what durations are counted in, as the
    author of the program states it; nothing of it was measured. Every method appends one op; raises StreamError, which
    names the op and the rule, for a stream that does not exist, a negative duration, a buffer freed twice or used
    after it was freed. `capture` writes the program of a function.

    >>> program = Program("hand over", streams="side")
    >>> program.kernel("produce", 4, writes="x")
    >>> program.record("produced")
    >>> program.wait("produced", "side")
    >>> program.kernel("consume", 2, on="side", reads="x", writes="y")
    >>> print(program)
    hand over
      1  kernel 'produce' on 'default'
      2  record('produced', 'default')
      3  wait('produced', 'side')
      4  kernel 'consume' on 'side'
    """

    def __init__(self, name: str = "program", streams: str | Iterable[str] = (), unit: str = "units") -> None:
        self.name, self.unit = name, unit
        self.ops: list[Op] = []
        self.streams: list[str] = [DEFAULT]
        self._live: dict[str, int] = {}  # buffer -> the op that allocated it
        self._freed: dict[str, int] = {}  # buffer -> the op that freed it
        for stream in names(streams):
            if not isinstance(stream, str) or not stream:
                raise StreamError(f"a stream is called by a name, got {stream!r}")
            if stream in self.streams:
                raise StreamError(f"there are two streams named {stream!r}")
            self.streams.append(stream)

    # --- work ---

    def kernel(
        self,
        name: str,
        duration: float,
        on: str = DEFAULT,
        *,
        reads: str | Iterable[str] = (),
        writes: str | Iterable[str] = (),
        kind: str = "compute",
    ) -> None:
        """Launch a kernel. reads, writes: buffers, as names in one text or as a tuple."""
        self.add(Kernel(name, duration, on, names(reads), names(writes), kind))

    # --- events ---

    def record(self, event: str, on: str = DEFAULT) -> None:
        """Record the event on a stream: it now stands for everything that is queued there."""
        self.add(Record(event, on))

    def wait(self, event: str, on: str = DEFAULT) -> None:
        """Let a stream wait for what the event stands for at this moment; the host goes on at once."""
        self.add(Wait(event, on))

    def wait_stream(self, other: str, on: str = DEFAULT) -> None:
        """Let a stream wait for everything that is queued on another one."""
        self.add(WaitStream(on, other))

    def synchronize(self, what: str | None = None, *, event: str | None = None) -> None:
        """Stop the host until a stream (named), an event (`event=`), or the device (neither) has finished."""
        if event is not None:
            self.add(Synchronize("event", event))
        else:
            self.add(Synchronize("stream", what) if what else Synchronize("device"))

    # --- memory ---

    def alloc(self, buffer: str, size: float = 1.0, on: str = DEFAULT) -> None:
        """Get memory for a buffer from the pool of a stream."""
        self.add(Alloc(buffer, on, size))

    def free(self, buffer: str) -> None:
        """Let go of a buffer, as `del` of a tensor's last reference does."""
        self.add(Free(buffer))

    def record_stream(self, buffer: str, stream: str) -> None:
        """Tell the allocator that a stream uses the buffer."""
        self.add(RecordStream(buffer, stream))

    # --- any op ---

    def add(self, op: Op) -> None:
        """Append an op. Raises StreamError naming it where it breaks a rule."""
        if not isinstance(op, Op):
            raise StreamError(f"op {len(self.ops) + 1}: {op!r} is no op of a stream program")
        number = len(self.ops) + 1
        said = op.problem() or self._misplaced(op) or self._misused(op, number)
        if said:
            raise StreamError(f"op {number}, {op}: {said}")
        self.ops.append(op)

    def where(self, index: int) -> str:
        """How an op is called in messages: its number, counted from 1, and its words."""
        return f"op {index + 1}, {self.ops[index]}"

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __repr__(self) -> str:
        width = len(str(len(self.ops)))
        return "\n".join([self.name, *(f"  {i + 1:>{width}}  {op}" for i, op in enumerate(self.ops))])

    def _misplaced(self, op: Op) -> str:
        """A stream or a name that is not there."""
        streams = [getattr(op, name) for name in ("stream", "other") if hasattr(op, name)]
        if isinstance(op, Synchronize) and op.what == "stream":
            streams.append(op.name)
        for stream in streams:
            if stream not in self.streams:
                return f"there is no stream {stream!r}; there is {', '.join(self.streams)}"
        if isinstance(op, WaitStream) and op.stream == op.other:
            return "a stream that waits for itself waits for nothing"
        for name in ("name", "event", "buffer"):
            text = getattr(op, name, "x")
            if not isinstance(text, str) or (not text and not isinstance(op, Synchronize)):
                return f"its {name} must be a text, got {text!r}"
        return ""

    def _misused(self, op: Op, number: int) -> str:
        """Memory that is not there, any more or yet; keeps count of what is."""
        if isinstance(op, Kernel):
            for buffer in (*op.reads, *op.writes):
                if buffer in self._freed:
                    return f"{buffer!r} was freed by op {self._freed[buffer]}"
        elif isinstance(op, Alloc):
            if op.buffer in self._live:
                return f"{op.buffer!r} is there since op {self._live[op.buffer]}: free it first"
            self._live[op.buffer] = number
            self._freed.pop(op.buffer, None)
        elif isinstance(op, (Free, RecordStream)):
            if op.buffer in self._freed:
                return f"{op.buffer!r} was freed by op {self._freed[op.buffer]} already"
            if op.buffer not in self._live:
                return f"{op.buffer!r} was never allocated"
            if isinstance(op, Free):
                del self._live[op.buffer]
                self._freed[op.buffer] = number
        return ""

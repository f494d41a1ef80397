"""The words of a stream program: what a host issues, one small object each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

__all__ = [
    "COMMUNICATION",
    "DEFAULT",
    "KINDS",
    "Alloc",
    "Free",
    "Kernel",
    "Op",
    "Record",
    "RecordStream",
    "StreamError",
    "Synchronize",
    "Wait",
    "WaitStream",
    "names",
]

DEFAULT = "default"  # the stream that a program is on unless it says otherwise
COMMUNICATION = ("collective", "copy")
KINDS = ("compute", *COMMUNICATION)


class StreamError(ValueError):
    """A stream program that cannot be: the message names the op by its number and the rule that it breaks."""


@dataclass(frozen=True)
class Op:
    """What all ops are: a word of the program, which reads like the call that it stands for."""

    def __str__(self) -> str:
        given = [f"{getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) not in ("", ())]
        word = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__).strip("_")
        return f"{word}({', '.join(given)})"

    def problem(self) -> str:
        """What is wrong with this op, whatever stands around it; '' where nothing is."""
        return ""


@dataclass(frozen=True)
class Kernel(Op):
    """Work on a stream: `duration` in the program's unit, the buffers that it reads and writes.

    kind: 'compute', 'collective' or 'copy'.
    """

    name: str
    duration: float
    stream: str = DEFAULT
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    kind: str = "compute"

    def __str__(self) -> str:
        return f"{'kernel' if self.kind == 'compute' else self.kind} {self.name!r} on {self.stream!r}"

    def problem(self) -> str:
        if self.kind not in KINDS:
            return f"kind {self.kind!r} is not one of {', '.join(KINDS)}"
        number = isinstance(self.duration, (int, float)) and not isinstance(self.duration, bool)
        good = number and math.isfinite(self.duration) and self.duration >= 0
        return "" if good else f"a duration is a number of 0 or more, got {self.duration!r}"


@dataclass(frozen=True)
class Record(Op):
    """The event stands for what is on the stream so far; recorded again, it stands for something new from then on."""

    event: str
    stream: str = DEFAULT


@dataclass(frozen=True)
class Wait(Op):
    """What comes later on the stream waits for the event's latest record at this moment; without one, for nothing."""

    event: str
    stream: str = DEFAULT


@dataclass(frozen=True)
class WaitStream(Op):
    """What comes later on the stream waits for all that is on `other` so far: a record there and a wait here."""

    stream: str
    other: str


@dataclass(frozen=True)
class Synchronize(Op):
    """The host waits: for an 'event', for a 'stream', or for the whole 'device'."""

    what: str
    name: str = ""

    def problem(self) -> str:
        if self.what not in ("event", "stream", "device"):
            return f"the host can wait for an event, a stream or the device, not for {self.what!r}"
        return ""


@dataclass(frozen=True)
class Alloc(Op):
    """The host asks the allocator for memory, which belongs to the pool of `stream`; size in the program's own unit."""

    buffer: str
    stream: str = DEFAULT
    size: float = 1.0

    def problem(self) -> str:
        good = isinstance(self.size, (int, float)) and math.isfinite(self.size) and self.size > 0
        return "" if good else f"a size is a number above 0, got {self.size!r}"


@dataclass(frozen=True)
class Free(Op):
    """The host lets go of the buffer, which returns to its pool at once, whatever the streams still do with it."""

    buffer: str


@dataclass(frozen=True)
class RecordStream(Op):
    """The allocator is told that `stream` uses the buffer: once freed, it is not given out before that work is done."""

    buffer: str
    stream: str = DEFAULT


def names(given: str | Iterable[str]) -> tuple[str, ...]:
    """One name, several in one text, or several as a tuple of names.

    >>> names("a b"), names(("a", "b")), names("")
    (('a', 'b'), ('a', 'b'), ())
    """
    return tuple(given.split()) if isinstance(given, str) else tuple(given)

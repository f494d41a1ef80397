"""The reader's own file of predictions and measurements: one JSON document a line, which labkit only appends to.

It lies in the folder that LABKIT_HOME names, otherwise where programs of this platform keep their users' data
(`~/.local/share/labkit` on Linux), so that it outlives the checkout and is never committed with it.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.files import home

try:
    import fcntl
except ImportError:  # Windows: a single write in append mode is what is left
    fcntl = None  # type: ignore[assignment]

__all__ = ["MEASURED", "PREDICTED", "Entry", "add", "entries", "file", "home", "unreadable"]

PREDICTED, MEASURED = KINDS = ("predicted", "measured")
LOCK_S = 2.0

# lines that could not be written, by file: kept for this kernel, and written with the next one that can be
_waiting: dict[Path, list[bytes]] = {}


@dataclass(frozen=True)
class Entry:
    """One line of the file: a number that was predicted or measured for a question, when, and on what."""

    kind: str
    question: str
    value: float
    unit: str = ""
    date: str = ""
    torch: str = ""
    hardware: str = ""
    label: str = ""


def file() -> Path:
    """The path of the file, in `home()`."""
    return home() / "predictions.jsonl"


def add(kind: str, question: str, value: float, unit: str = "", **facts: str) -> str:
    """Append one line to the file.

    Two kernels may append at the same time. Lines that could not be written are kept for this kernel and written with
    the first one that can be.

    Args:
        kind: PREDICTED or MEASURED.
        question: its name.
        value: the number.
        unit: of the number.
        facts: fields of `Entry`, such as `torch` and `hardware`.

    Returns:
        '' when the line was written, otherwise a sentence with the reason.

    >>> add("predicted", "doctest.added", 3, "breaks")
    ''
    >>> [(e.value, e.unit) for e in entries() if e.question == "doctest.added"]
    [(3.0, 'breaks')]
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    body = {"kind": kind, "question": question, "value": float(value), "unit": unit, "date": now, **facts}
    path = file()
    waiting = _waiting.setdefault(path, [])
    waiting.append(json.dumps({k: v for k, v in body.items() if v != ""}, ensure_ascii=False).encode())
    try:
        _append(path, waiting)
    except OSError as error:
        return f"cannot write {_shown(path)} ({error.strerror or error}): kept for this kernel only"
    waiting.clear()
    return ""


def entries() -> list[Entry]:
    """Read everything predicted and measured so far, oldest first; unreadable lines are skipped."""
    return [entry for line in _lines() if (entry := _parse(line))]


def unreadable() -> int:
    """Count the half-written or damaged lines of the file. They stay where they are."""
    return sum(_parse(line) is None for line in _lines())


def _lines() -> list[bytes]:
    path = file()
    try:
        written = path.read_bytes().split(b"\n")
    except OSError:
        written = []
    return [line for line in [*written, *_waiting.get(path, ())] if line.strip()]


def _parse(line: bytes) -> Entry | None:
    try:
        body: Any = json.loads(line)
        value = float(body["value"])
        known = {name: str(body[name]) for name in Entry.__dataclass_fields__ if name in body}
        entry = Entry(**{**known, "value": value})  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return entry if entry.kind in KINDS and entry.question and math.isfinite(value) else None


def _append(path: Path, lines: list[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        with _locked(handle):
            text = b"".join(line + b"\n" for line in lines)
            if os.fstat(handle).st_size:
                os.lseek(handle, -1, os.SEEK_END)
                if os.read(handle, 1) != b"\n":  # a writer that died half-way through its line
                    text = b"\n" + text
            while text:
                text = text[os.write(handle, text) :]
    finally:
        os.close(handle)


@contextmanager
def _locked(handle: int) -> Iterator[None]:
    """Hold the lock of the file where it can be had soon; otherwise appending in one write still keeps lines apart."""
    deadline = time.monotonic() + LOCK_S
    held = False
    while fcntl is not None and not held:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        except OSError:  # a file system without locks
            break
    try:
        yield
    finally:
        if held:
            fcntl.flock(handle, fcntl.LOCK_UN)


def _shown(path: Path) -> str:
    """The path as a reader would type it, with '~'."""
    user = os.path.expanduser("~")
    text = str(path)
    return "~" + text[len(user) :] if user not in ("/", "~") and text.startswith(user + os.sep) else text

"""A sweep: many points, measured one at a time, each saved when it is done, so that an interrupt loses only one.

A point's file holds what was measured and when. The folder is named after everything that decides what a point means
(experiment, settings, code under study, torch, machine), so that a sweep never takes up another one's points. When the
last point is done the folder goes: the report has it all, and the next run measures anew.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import files, hardware

__all__ = ["Sweep", "parse_range", "parse_sizes"]

MOST_POINTS = 64
LARGEST = 1 << 30  # bytes
METADATA = {"labkit": "live"}  # by this, saved lessons leave the output out


def parse_range(what: str, given: str | Sequence[int], least: int = 1, most: int = 4096) -> tuple[int, ...]:
    """The values of a sweep, in the order given, out of numbers or of text: '8,16,24', '8:64:8' (both ends included).

    Raises ValueError naming the range and the rule that it breaks: no number, outside of `least` to `most`, a step
    that leads nowhere, fewer than two different values, more than 64.

    >>> parse_range("lengths", "8:32:8, 8")
    (8, 16, 24, 32, 8)
    >>> parse_range("lengths", "32:8")
    Traceback (most recent call last):
    ValueError: lengths: the range 32:8 is empty: it goes from 32 up to 8
    """
    found: list[int] = []
    for part in given.split(",") if isinstance(given, str) else list(given):
        found += _part(what, part)
        if len(found) > MOST_POINTS:
            raise ValueError(f"{what}: at most {MOST_POINTS} values in one sweep, and this has more")
    for value in found:
        if not least <= value <= most:
            raise ValueError(f"{what}: a value is from {least} to {most}, got {value}")
    if len(set(found)) < 2:
        raise ValueError(
            f"{what}: a sweep varies something, so give at least two different values, got {given!r}"
        )
    return tuple(found)


def _part(what: str, part: Any) -> list[int]:
    if isinstance(part, int) and not isinstance(part, bool):
        return [part]
    text = part.strip() if isinstance(part, str) else ""
    if re.fullmatch(r"-?\d+", text):
        return [int(text)]
    ends = re.fullmatch(r"(\d+):(\d+)(?::(\d+))?", text)
    if not ends:
        raise ValueError(f"{what}: whole numbers such as 8,16,24 or a range such as 8:64:8, got {part!r}")
    first, last, step = int(ends[1]), int(ends[2]), int(ends[3] or 1)
    if step < 1:
        raise ValueError(f"{what}: the step of {text} leads nowhere: it must be at least 1")
    if last < first:
        raise ValueError(f"{what}: the range {text} is empty: it goes from {first} up to {last}")
    if (last - first) // step >= MOST_POINTS:
        raise ValueError(f"{what}: {text} has more than {MOST_POINTS} values: take a larger step")
    return list(range(first, last + 1, step))


def parse_sizes(sizes: str | Sequence[int]) -> tuple[int, ...]:
    """Sizes in bytes, ascending, out of numbers or of text such as '4,16K,64M'.

    Raises ValueError for what is no size, no whole number of float32, or above 1 GB.

    >>> parse_sizes("4, 16K,1M")
    (4, 16384, 1048576)
    """
    given = sizes.split(",") if isinstance(sizes, str) else list(sizes)
    found: list[int] = []
    for size in given:
        number: Any = size
        if isinstance(size, str):
            digits, unit = size.strip()[:-1], size.strip()[-1:].upper()
            factor = {"K": 1024, "M": 1 << 20, "G": 1 << 30}.get(unit)
            text = digits if factor else size.strip()
            number = int(text) * (factor or 1) if text.isdecimal() else None
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or number % 4 or not 4 <= number <= LARGEST:
            raise ValueError(f"a size is a multiple of 4 bytes up to 1G, such as 4, 16K or 64M, got {size!r}")
        found.append(number)
    if not found:
        raise ValueError("no size was given: give at least one, such as 4 or 16K")
    return tuple(sorted(set(found)))


@dataclass
class Sweep:
    """The points of one sweep on disk. `settings` (JSON) decide, with torch and machine, which points belong to it.

    folder: where unfinished sweeps are kept, None for the reader's own folder. fresh: begin anew, whatever is there.
    `resumed` counts the points that an earlier, interrupted run had measured; `since` is the oldest one's date (UTC).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sweep = Sweep("doctest", {"size": 3}, folder)
    ...     sweep.run({"a": 1, "b": 2}, lambda point: [{"square": point**2}])
    [{'square': 1}, {'square': 4}]
    """

    name: str
    settings: Mapping[str, Any]
    folder: str | Path | None = None
    fresh: bool = False
    talk: bool = False
    resumed: int = 0
    since: str = ""
    _line: Any = field(default=None, repr=False)
    _lost: bool = field(default=False, repr=False)

    @property
    def place(self) -> Path:
        """The folder of this sweep's points; it is there only while the sweep is unfinished."""
        facts = hardware.describe()
        decides = {**self.settings, "torch": facts["torch"], "hardware": facts["hardware"]}
        digest = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return Path(self.folder or files.home() / "sweeps") / f"{self.name}-{digest}"

    def run(
        self, points: Mapping[str, Any], measure: Callable[[Any], Sequence[Mapping[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Measure every point that is not there yet, in order, and return the rows of all.

        `measure(point)` gives a list of JSON rows. What it raises passes through, and the points before it are kept.
        Raises ValueError for no points, or where the folder cannot be written, before anything is measured.
        """
        if not points:
            raise ValueError(f"the sweep {self.name!r} has no points")
        place = self.place
        if self.fresh:
            shutil.rmtree(place, ignore_errors=True)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"cannot keep the points of {self.name!r} in {place}: {error.strerror}"
            ) from error
        known = {key: found for key in points if (found := _read(place / _file(key), key))}
        self.resumed, self.since = len(known), min((found["date"] for found in known.values()), default="")
        began, took = time.monotonic(), 0.0
        rows: list[dict[str, Any]] = []
        left = [key for key in points if key not in known]
        for key, point in points.items():
            if key not in known:
                done = len(points) - len(left)
                about = _left(took, done - self.resumed, len(left))
                self._show(f"{done} of {len(points)} points, {about}now: {key}")
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                known[key] = {"key": key, "date": now, "rows": [dict(row) for row in measure(point)]}
                self._keep(place / _file(key), known[key])
                left.remove(key)
                took = time.monotonic() - began
            rows += known[key]["rows"]
        self._show(f"{len(points)} points in {took:.0f} s" + self.note(", "), last=True)
        shutil.rmtree(place, ignore_errors=True)
        return rows

    def _keep(self, path: Path, point: Mapping[str, Any]) -> None:
        """A full disk costs what an interrupt would, and not what was measured."""
        try:
            files.replace(path, json.dumps(point, ensure_ascii=False).encode())
        except OSError as error:
            if not self._lost:
                why = error.strerror or error
                print(f"{self.name}: points cannot be kept for a later run: {why}", file=sys.stderr)
            self._lost = True

    def note(self, before: str = "") -> str:
        """What a report says of points that are from before an interrupt; '' where there are none."""
        if not self.resumed:
            return ""
        return f"{before}{self.resumed} points are from before an interrupt, the oldest of {self.since}"

    def _show(self, said: str, last: bool = False) -> None:
        """In a notebook one output that renews itself, elsewhere a line a point where `talk` asks for it."""
        text = f"{self.name}: {said}"
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython else None
        if getattr(shell, "kernel", None) is None:
            if self.talk:
                print(text, flush=True)
            return
        from IPython.display import display

        data = {"text/plain": text, "text/html": f'<div style="opacity:0.75;font-size:90%">{text}</div>'}
        if self._line is None:
            self._line = display(data, raw=True, display_id=True, metadata=METADATA)
        else:
            self._line.update(data, raw=True, metadata=METADATA)
        if last:
            self._line = None


def _left(took: float, done: int, left: int) -> str:
    return f"about {took / done * left:.0f} s left, " if done else ""


def _file(key: str) -> str:
    """A name that any file system takes, and that no other key has."""
    return (
        f"{re.sub(r'[^a-z0-9]+', '-', key.lower())[:60]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"
    )


def _read(path: Path, key: str) -> dict[str, Any] | None:
    """A point that was measured before; what cannot be read, or is another point, is measured again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if found["key"] == key and isinstance(found["rows"], list) and found["date"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""Processes that a test may have left."""

from __future__ import annotations

import os
from pathlib import Path


def left(mark: str) -> list[int]:
    """Processes, other than this one, whose environment holds a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                found.append(int(path.name))
        except OSError:
            continue
    return found

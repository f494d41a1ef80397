"""Reports that are kept in data/recorded, by machine and day."""

from __future__ import annotations

import re
from pathlib import Path

from labkit import files

__all__ = ["newest"]


def newest(name: str, machine: str | None = None, folder: Path | None = None) -> Path | None:
    """Find the newest recording of an experiment.

    Args:
        name: of the report.
        machine: such as '2-core-cpu'; None for any.
        folder: by default data/recorded of this checkout.

    Returns:
        The path, or None where there is none.

    >>> newest("cliff").name, newest("cliff", machine="abacus")
    ('cliff.json', None)
    """
    root = files.ours("data/recorded") if folder is None else folder
    found = []
    for path in root.glob(f"*/{name}.json"):
        parts = re.fullmatch(r"(.+)-(\d{4}-\d{2}-\d{2})", path.parent.name)
        if parts and machine in (None, parts[1]):
            found.append((parts[2], path.parent.name, path))
    return max(found)[2] if found else None

"""Compares what torch logged on two ranks, from the files that `Ranks(logs=...)` writes."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from labkit.graphs.stage_diff import Diff, diff

__all__ = ["diff_logs"]

_HEAD = re.compile(
    r"^(?:\[rank\d+\]:)?([VDIWEC])\d{4} [\d:.]+ \d+ ", re.MULTILINE
)  # level, then time and process


def diff_logs(folder: str | os.PathLike[str], a: int = 0, b: int = 1) -> Diff:
    """Compare the logs of two ranks line by line, without times, process numbers and addresses.

    Args:
        folder: The one that was given as `Ranks(logs=...)`.
        a: A rank.
        b: The other one.

    Returns:
        The aligned lines, as `diff` gives them.

    Raises:
        ValueError: If a rank has no log there.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for rank, size in ((0, 8), (1, 9)):
    ...     text = f"[rank{rank}]:V1122 22:10:0{rank}.5 7{rank} f.py:3] [0/0] size {size}"
    ...     _ = (folder / f"rank-{rank}.log").write_text(text)
    >>> print(diff_logs(folder).said)
    logs: 1 of 1 lines differ, the first at line 1 of rank 0, 1 of rank 1
    """
    texts = []
    for rank in (a, b):
        path = Path(folder) / f"rank-{rank}.log"
        try:
            texts.append(_HEAD.sub(r"\1 ", path.read_text(encoding="utf-8", errors="replace")))
        except OSError as error:
            raise ValueError(f"no log of rank {rank}: {path}: {error.strerror or error}") from None
    compared = diff(texts[0], texts[1], "source", (f"rank {a}", f"rank {b}"))
    return replace(compared, stage="logs")

"""Notes of what each rank began and ended, in files that outlive a rank which hangs or dies."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from course.shared.timelines import ENDS, NOTES
from labkit.ranks import Outcome, RankError, Ranks, here
from labkit.ranks.output import quiet_stderr

__all__ = ["note_run"]

SAID = {"ok": "returned", "error": "raised", "dead": "died"}


def note_run(
    ranks: Ranks, drill: str, program: Callable[..., Any], *arguments: Any, **limits: Any
) -> tuple[pd.DataFrame, pd.DataFrame, RankError | None]:
    """Run a program on ranks, and note when each rank began and ended each piece of its work.

    Args:
        ranks: The ranks.
        drill: A name for the run.
        program: Called on each rank as `program(*arguments, note)`. `with note(kind, what):` notes a piece of work;
            kinds are those of `labkit.views.style.KINDS`.
        limits: Of the call, such as `stall`.

    Returns:
        The notes and the ends, as `timelines` draws them, and the error of the call. A piece of work that did not end
        has no end. A rank's part ends with its last piece of work, or with the call where a piece did not end.

    >>> with Ranks(1, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     notes, ends, error = note_run(ranks, "d", lambda note: note("compute", "layer").__enter__())
    >>> notes["what"].item(), notes["end"].isna().item(), ends["said"].item(), error
    ('layer', True, 'returned', None)
    """

    def on_a_rank(folder: str) -> Any:  # it travels by value, so that no rank imports what draws
        with open(f"{folder}/{here().rank}", "w", buffering=1) as file, quiet_stderr():

            @contextlib.contextmanager
            def note(kind: str, what: str) -> Iterator[None]:
                print(json.dumps([time.time(), kind, what]), file=file)
                yield
                print(json.dumps([time.time()]), file=file)

            return program(*arguments, note)

    error = None
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        try:
            values = ranks.run(on_a_rank, folder, **limits)
            said = {r: "returned" if value is None else f"returned {value}" for r, value in values.items()}
        except RankError as caught:
            error = caught
            said = {outcome.rank: _said(outcome) for outcome in caught.outcomes}
        over = time.time() - started
        pieces = {rank: _read(Path(folder) / str(rank), started) for rank in sorted(said)}
    notes = [(drill, rank, *piece) for rank, mine in pieces.items() for piece in mine]
    ends = [(drill, rank, _end(mine, over), said[rank]) for rank, mine in pieces.items()]
    return pd.DataFrame(notes, columns=NOTES).astype({"end": float}), pd.DataFrame(ends, columns=ENDS), error


def _said(outcome: Outcome) -> str:
    """How a rank's part ended. A rank that was cut off while it computed or compiled did not wait."""
    if outcome.kind == "unfinished":
        return "still waits" if outcome.waits else "not finished"
    return SAID.get(outcome.kind, outcome.kind)


def _read(path: Path, started: float) -> list[list[Any]]:
    """The pieces of work of one rank: kind, what, begin and end."""
    found: list[list[Any]] = []
    running: list[list[Any]] = []  # a piece inside another one cuts that in two
    for line in path.read_text().splitlines() if path.exists() else ():
        at, *begun = json.loads(line)
        if running:
            running[-1][-1] = at - started
        if not begun:
            running.pop()
            begun = running.pop()[:2] if running else []
        if begun:
            running.append([*begun, at - started, None])
            found.append(running[-1])
    return found


def _end(pieces: list[list[Any]], over: float) -> float:
    ends = [piece[-1] for piece in pieces]
    return over if None in ends else max(ends, default=over)

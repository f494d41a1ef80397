"""`%load_ext labkit` and the `%%ranks` cell magic."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any

from labkit.ranks import group, spawn
from labkit.report import PerRank

_USAGE = "%%ranks [RANKS] [--timeout SECONDS], where RANKS is like 1 or 0,2; no RANKS means all"


def load(shell: Any) -> None:
    """Add `%%ranks` and start the zygote in the background, so that the first ranks need no import."""
    shell.register_magic_function(ranks_cell, "cell", "ranks")
    spawn.shared()


def unload(shell: Any) -> None:
    """Remove `%%ranks` and end the current ranks."""
    shell.magics_manager.magics["cell"].pop("ranks", None)
    ranks = group.current()
    if ranks is not None:
        ranks.close()


def ranks_cell(line: str, cell: str) -> PerRank | None:
    """Run the cell's body on every rank, in names that persist there; show the last expression side by side.

    Uses the ranks started last (`labkit.Ranks(...)`), or starts two. Raises ValueError for options it does not know.
    """
    chosen, timeout = parse(line)
    ranks = group.current() or _start_default()
    filename, first_line = _place(cell)
    found = ranks.run_cell(cell, filename, first_line, timeout, chosen)
    return None if all(value is None for value in found) else found


def parse(line: str) -> tuple[list[int] | None, float | str | None]:
    """The options of a `%%ranks` line: which ranks (None for all) and the timeout in seconds.

    >>> parse("1 --timeout 5")
    ([1], 5.0)
    """
    parser = argparse.ArgumentParser(prog="%%ranks", add_help=False, exit_on_error=False)
    parser.add_argument("ranks", nargs="?")
    parser.add_argument("--timeout", type=float)
    try:
        options, unknown = parser.parse_known_args(shlex.split(line, comments=True))
    except (argparse.ArgumentError, ValueError) as error:
        raise ValueError(f"{error}; usage: {_USAGE}") from None
    if unknown:
        raise ValueError(f"%%ranks does not know {unknown[0]!r}; usage: {_USAGE}")
    if options.ranks is not None and not re.fullmatch(r"\d+(,\d+)*", options.ranks):
        raise ValueError(f"%%ranks does not know {options.ranks!r}; usage: {_USAGE}")
    chosen = None if options.ranks is None else [int(part) for part in options.ranks.split(",")]
    return chosen, "default" if options.timeout is None else options.timeout


_kept: list[group.Ranks] = []  # ranks started by the magic have no name in the notebook that keeps them alive


def _start_default() -> group.Ranks:
    _kept[:] = [group.Ranks(2)]
    return _kept[0]


def _place(cell: str) -> tuple[str, int]:
    """The name and first line of the body, so that places read `In [5]:3` as the reader counts lines."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return "cell", 1
    return f"In [{shell.execution_count}]", 2  # line 1 is the %%ranks line itself

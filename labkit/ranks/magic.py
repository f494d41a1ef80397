"""`%load_ext labkit` and the `%%ranks` cell magic."""

from __future__ import annotations

import argparse
import shlex
import sys
from types import FrameType
from typing import Any

from labkit.per_rank import PerRank
from labkit.ranks import cells, group, spawn

_USAGE = (
    "%%ranks [RANKS] [--timeout SECONDS] [--stall SECONDS], where RANKS is like 1 or 0,2; no RANKS means all"
)


def load(shell: Any) -> None:
    """Add `%%ranks` to an IPython shell, and start the zygote in the background, so that the first ranks start fast."""
    shell.register_magic_function(ranks_cell, "cell", "ranks")
    if sys.platform == "linux":
        spawn.shared()


def unload(shell: Any) -> None:
    """Remove `%%ranks` from an IPython shell, and end the current ranks."""
    shell.magics_manager.magics["cell"].pop("ranks", None)
    ranks = group.current()
    if ranks is not None:
        ranks.close()


def ranks_cell(line: str, cell: str) -> PerRank | None:
    """Run the cell on ranks, in a namespace that persists there, and show the last expression side by side.

        %%ranks                 all ranks
        %%ranks 0               rank 0 alone; 0,2 are two ranks
        %%ranks --timeout 60    seconds until the cell ends with an error
        %%ranks --stall 10      seconds that ranks may wait for each other

    It runs on the ranks that were started last (`labkit.Ranks(...)`), or starts two. The notebook's own names are not
    there: pass them with `ranks.run(fn, x)`. ipyparallel calls this `%%px --targets 0`, nbdistributed `%%rank [0]`.

    Args:
        line: The options.
        cell: The body.

    Returns:
        The value of the last expression, by rank; None if every rank has None.

    Raises:
        ValueError: For an unknown option.
        RankError: As `Ranks.run`.
    """
    options = parse(line)
    ranks = group.current() or _start_default()
    filename, first_line = _place()
    found = ranks._call(("cell", cell, filename, first_line), **options)
    return None if all(value is None for value in found.values()) else found


def parse(line: str) -> dict[str, Any]:
    """Parse the options of a `%%ranks` line into what the call is given.

    Raises:
        ValueError: For an unknown option.

    >>> parse("1 --timeout 5")
    {'ranks': [1], 'timeout': 5.0}
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("ranks", nargs="?", type=_numbers, default=None)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--stall", type=float)
    try:
        options, unknown = parser.parse_known_args(shlex.split(line, comments=True))
    except (argparse.ArgumentError, ValueError) as error:
        raise ValueError(f"{error}; usage: {_USAGE}") from None
    if unknown:
        raise ValueError(f"%%ranks does not know {unknown[0]!r}; usage: {_USAGE}")
    return vars(options)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


_kept: list[group.Ranks] = []  # ranks started by the magic have no name in the notebook that keeps them alive


def _start_default() -> group.Ranks:
    _kept[:] = [group.Ranks(2)]
    return _kept[0]


def _place() -> tuple[str, int]:
    """The name and first line of the body, so that places read `In [5]:3` as the reader counts lines."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # asked of the running code: since IPython 9 the shell's own count is the next cell's while this one runs
        if label := cells.label_of(frame.f_code.co_filename):
            return label, 2  # line 1 is the %%ranks line itself
        frame = frame.f_back
    return "cell", 1

"""Several runs of one script, one after another, of which each has a folder and what it printed."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from oddrank.files import write
from oddrank.look import command, look, page, torchrun
from oddrank.look.endings import STOPPED, Ending
from oddrank.look.look import Look
from oddrank.look.program import Program
from oddrank.look.rendezvous import launched
from oddrank.look.steps import Options
from oddrank.look.torchrun import Request

__all__ = ["Stopped", "Trial", "refuse", "trial"]

SAME = {"PYTHONHASHSEED": "0"}  # on all ranks: under torchrun each has an order of sets of its own
# what several runs cannot be asked for
ALONE = ("save", "against", "trace", "merge")


class Stopped(Exception):
    """Somebody interrupted a run."""


@dataclass
class Trial:
    """One run, and what it left.

    Attributes:
        folder: Of the run.
        ending: How it ended.
        seconds: How long it took.
        looked: What the ranks recorded; None for nothing.
    """

    folder: Path
    ending: Ending
    seconds: float
    looked: Look | None


def refuse(given: argparse.Namespace, mode: str) -> None:
    """Refuse what several runs cannot be asked for, before a rank is started.

    Raises:
        ValueError: Under torchrun, and for an option of one run.
    """
    if launched() is not None:
        raise ValueError(f"--{mode} starts its own ranks: run it without torchrun")
    for name in ALONE:
        if getattr(given, name):
            raise ValueError(f"--{name} is of one run, and --{mode} makes several")


def trial(
    given: argparse.Namespace,
    program: Program,
    folder: Path,
    options: Options,
    own: Mapping[int, Mapping[str, str | None]] | None = None,
    verify: bool = False,
) -> Trial:
    """Run the script once; what it prints goes to `output.txt`.

    Args:
        given: The parsed command line.
        program: The script.
        folder: A new one, for this run.
        options: Which steps to record, and what differs.
        own: What differs in the environment of single ranks.
        verify: Whether collectives are compared before they run.

    Raises:
        Stopped: Somebody interrupted it.
    """
    folder.mkdir()
    request = Request(program, options, command.limits(given), verify, own or {})
    began = time.monotonic()
    with _printing_to(folder / "output.txt"):
        ending = torchrun.run(request, command.world_size(given), folder, SAME)
    seconds = time.monotonic() - began
    if ending.said.startswith(STOPPED):
        raise Stopped
    looked = look.read(folder)
    if looked is not None and looked.steps:
        looked.failed = bool(ending.said)
        write(folder / "index.html", page.html(looked, ending.said, given.step).encode())
    return Trial(folder, ending, seconds, looked)


@contextlib.contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    with (
        path.open("w", encoding="utf-8", errors="replace") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield

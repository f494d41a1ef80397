"""The door of `labkit postmortem` in the command line, without an import of torch."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import files

__all__ = ["add"]

STATUS = """\
exit status:
  0  a verdict: what went wrong, or that these files show nothing wrong
  1  no file was recognised, or the files do not tell what went wrong
  2  a request that cannot be met
"""


def add(commands: Any) -> None:
    """Add the command to those of `labkit`."""
    what = "Read what a dead or hanging job left (flight records, logs, TORCH_TRACE, stacks), and write one page."
    shown = "say which rank a dead or hanging job waits for, and why, from what it left in a folder"
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        "postmortem", help=shown, description=what, epilog=STATUS, formatter_class=raw
    )
    parser.add_argument(
        "folders", nargs="+", type=files.folder, metavar="DIR", help="folders or files that the job left"
    )
    said = "where the page goes (default: postmortem)"
    parser.add_argument("--out", type=files.folder, default=Path("postmortem"), metavar="DIR", help=said)
    parser.set_defaults(act=_postmortem)


def _postmortem(given: argparse.Namespace) -> int:
    files.writable(given.out, "index.html")
    collects = gc.isenabled()
    gc.disable()  # records are millions of small objects without circles: looking for garbage among them takes longest
    try:
        return _told(given)
    finally:
        if collects:
            gc.enable()


def _told(given: argparse.Namespace) -> int:
    from labkit.postmortem import material, page, source, tools, verdict

    held = material.gather(given.folders, _progress() if sys.stderr.isatty() else _silent)
    told = verdict.judge(held)
    places = dict((file, path) for path, file in material.found(given.folders))
    drawn = source.Shown()
    try:
        drawn = source.shown(held, places)
    except Exception as error:  # traces are data from outside, and cost no verdict
        print(f"labkit: the source is not shown: {type(error).__name__}: {error}", file=sys.stderr)
    print(page.summary(told, held, drawn.text), flush=True)
    if not any(read.kind for read in held.reads):
        return 1
    ran = tools.run(held, places, given.out)
    name = given.folders[0].resolve().name
    path = files.replace(
        given.out / "index.html", page.html(told, held, name, ran, drawn.parts).encode("utf-8", "replace")
    )
    print(f"\npage: {path}")
    return 0 if told.told else 1


def _silent(done: int, total: int, file: str) -> None:
    """No progress where nobody looks."""


def _progress() -> Callable[[int, int, str], None]:
    shown = [-1]

    def show(done: int, total: int, file: str) -> None:
        share = 100 * done // max(total, 1)
        if total > 20 * 2**20 and share != shown[0]:
            shown[0] = share
            bar = "#" * (share // 4)
            print(
                f"\r{bar:<25} {share:3d} % {file[-40:]:<40}",
                end="" if file else "\n",
                file=sys.stderr,
                flush=True,
            )

    return show

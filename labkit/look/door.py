"""The doors of `labkit look` and `labkit report` in the command line: their options, without an import of torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from labkit import runs
from labkit.experiments.options import Option

__all__ = ["add"]

STATUS = """\
exit status:
  0  done, and the gate passed
  1  with --against: breaks, graphs, recompiles or collectives rose, or ranks diverged
  2  a request that cannot be met, or no step to record
  3  the script failed
"""
RANKS = Option(
    "ranks",
    int,
    "number of ranks (default: 2; under torchrun, as many as it started)",
    least=1,
    most=65_536,
)
FILES = (
    ("out", "DIR", "a new folder for the page and the data"),
    ("save", "FILE", "save the counts as a baseline"),
    ("against", "FILE", "compare the counts with a baseline: exit status 1 where one rose"),
)
NUMBERS = (
    (2, Option("skip", int, "steps before the first recorded one", least=0, most=1_000_000, metavar="K")),
    (3, Option("steps", int, "steps to record", least=1, most=1_000, metavar="K")),
    (None, Option("timeout", float, "seconds that the script may take", least=0.1, most=1e9, metavar="S")),
    (
        60,
        Option(
            "stall", float, "seconds that all ranks may wait for each other", least=0.1, most=1e9, metavar="S"
        ),
    ),
)


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("needs the name of a folder, and got none")
    return Path(text)


def add(commands: Any) -> None:
    """Add the commands to those of `labkit`, with their options."""
    what = "Run an unchanged script as torchrun would, and write a page of what it compiled and ran."
    shown = "run a script of yours on ranks, and see its breaks, regions, recompiles and collectives"
    raw = argparse.RawDescriptionHelpFormatter
    look = commands.add_parser("look", help=shown, description=what, epilog=STATUS, formatter_class=raw)
    look.set_defaults(act=_look)
    _options(look)
    report = commands.add_parser("report", help="make one page of the reports that are saved in a folder")
    report.set_defaults(act=_report)
    what = "where they are; the page goes there, too"
    report.add_argument("folder", type=_folder, metavar="DIR", help=what)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=RANKS.read, metavar="N", help=RANKS.help)
    what, names = "what its process groups get, whatever it asks for", ("auto", "nccl", "gloo", "shm")
    parser.add_argument("--backend", default="auto", choices=names, help=what)
    for name, metavar, what in FILES:
        parser.add_argument(f"--{name}", type=Path, metavar=metavar, help=what)
    parser.add_argument("--step", default="", metavar="NAME", help="the function whose calls are the steps")
    for default, option in NUMBERS:
        said = option.help if default is None else f"{option.help} (default: {default})"
        parser.add_argument(
            f"--{option.name}", type=option.read, default=default, metavar=option.metavar, help=said
        )
    rest = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=rest, metavar="...", help="a module and its arguments")
    parser.add_argument("script", nargs=rest, metavar="...", help="a script and its arguments")


def _look(given: argparse.Namespace) -> int:
    from labkit.look import command

    return runs.under_torchrun(command.look)(given)


def _report(given: argparse.Namespace) -> int:
    from labkit.look import reports

    print(f"page: {reports.write(given.folder)}")
    return 0

"""Lessons on compiled distributed PyTorch."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from labkit import __version__
from oddrank import terminal

# the commands of what the rest of labkit does not import, by the module that adds them
DOORS = ("labkit.lessons.door", "ledger.door")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    return terminal.run("labkit", _parser, arguments)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = terminal.Parser(prog="labkit", description=__doc__, epilog=terminal.STATUS, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(act: Callable[[argparse.Namespace], int], name: str, what: str) -> Any:
        made = commands.add_parser(name, help=what)
        made.set_defaults(act=act)
        return made

    command(_doctor, "doctor", "what this machine has, and what ranks would run on")
    for name in DOORS:
        if importlib.util.find_spec(name.rpartition(".")[0]):
            importlib.import_module(name).add(commands)
    score = command(_score, "score", "your predictions in the lessons, beside what was measured")
    score.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _doctor(given: argparse.Namespace) -> int:
    from labkit import doctor

    for key, value in doctor.examine():
        print(f"{key:<10} {value or '-'}")
    return 0


def _score(given: argparse.Namespace) -> int:
    from labkit.study import predictions

    board = predictions.scoreboard()
    if given.json:
        print(board.to_json(orient="records", indent=1))
    else:
        table = board.set_index(["lesson", "question"])
        print(table.to_string(na_rep="-", float_format=lambda number: f"{number:g}"))
        print(f"your answers: {predictions.file()}")
    return 0

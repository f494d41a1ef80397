"""The door of the ledger in the command line: its options, without an import of torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add"]


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("needs the name of a folder, and got none")
    return Path(text)


def add(commands: Any) -> None:
    """Add the command to those of `labkit`, with its options."""
    parser = commands.add_parser(
        "ledger", help="what PyTorch does on this torch, fact by fact, and since when"
    )
    parser.set_defaults(act=_ledger)
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument("--lesson", metavar="L", help="only the facts of a lesson, such as 04")
    parser.add_argument("--only", metavar="ID", help="only these facts; 'breaks.*' matches several", **many)
    parser.add_argument("--json", action="store_true", help="print JSON, with what the trials saw")
    what = (
        "keep the answers (default: your own data folder); those of this torch and commit are not run again"
    )
    parser.add_argument("--save", nargs="?", const=True, type=_folder, metavar="DIR", help=what)
    parser.add_argument("--again", action="store_true", help="with --save: also run what is kept already")
    what = "run on this torch, such as 2.15.0, which `uv run` gets and caches (`uv cache clean`), and keep the answers"
    parser.add_argument("--torch", metavar="V", help=what)
    what = "print the facts that differ between two recorded versions; with --torch: between V and that torch"
    parser.add_argument("--diff", nargs="+", metavar="V", help=what)


def _ledger(given: argparse.Namespace) -> int:
    from ledger import command

    return command.ledger(given)

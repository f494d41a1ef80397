"""The command `oddrank`."""

from __future__ import annotations

import argparse
import glob
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from oddrank import __version__, places, terminal
from oddrank.look import arguments as look
from oddrank.postmortem import command as postmortem
from oddrank.record import Table, Tables, read
from oddrank.source import AnnotatedSource, annotate, compare
from oddrank.source.text import printable

__all__ = ["main"]

SHOWN = ("compiles", "marks", "counts")
MOST_WIDE = 60  # characters of a cell; --json has all of them
# of a table in the terminal: what fits beside each other
COLUMNS = {
    "compiles": (
        "rank",
        "id",
        "where",
        "func",
        "outcome",
        "broke",
        "operators",
        "graphs",
        "seconds",
        "runs",
        "why",
    ),
    "marks": ("rank", "compile", "where", "func", "kind", "stage", "name"),
    "counts": ("rank", "compiles", "graphs", "static_breaks", "gave_up", "recompiles", "regions", "breaks"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 2, with one sentence, for a request that cannot be met."""
    return terminal.run("oddrank", _parser, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = terminal.Parser(
        prog="oddrank",
        description="What ranks compiled and ran, and where they differ.",
        epilog=terminal.STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"oddrank {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    source = commands.add_parser("source", help="the program's source, and what each rank did at each line")
    tables = commands.add_parser("tables", help="what a folder of traces holds, in rows")
    for one in (source, tables):
        one.add_argument("folder", help="what TORCH_TRACE named, or one file of it")
        one.add_argument(
            "--profile",
            action="append",
            default=[],
            metavar="FILE",
            help="traces of one profiled step a rank",
        )
        one.add_argument(
            "--notebook", action="append", default=[], metavar="FILE", help="a notebook whose cells ran"
        )
    source.add_argument("--html", metavar="FILE", help="write a page instead")
    source.add_argument("--against", metavar="FOLDER", help="an older run to compare with: its traces")
    source.add_argument("--shapes", action="store_true", help="what each line makes, such as f32[4, s0]")
    source.add_argument("--libraries", action="store_true", help="functions of libraries, too")
    source.add_argument("--title", default="", help="of the page; its files by default")
    source.add_argument(
        "--colour", choices=("auto", "always", "never"), default="auto", help="of the terminal"
    )
    tables.add_argument("--table", choices=SHOWN, action="append", help="only this one")
    tables.add_argument("--rank", type=int, action="append", help="only this rank")
    tables.add_argument("--operators", action="store_true", help="operators and kernels as well")
    tables.add_argument("--json", action="store_true", help="every column, as JSON")
    source.set_defaults(act=lambda asked: _print(_source(asked)))
    tables.set_defaults(act=lambda asked: _print(_tables(asked)))
    look.add(commands)
    postmortem.add(commands)
    doctor = commands.add_parser("doctor", help="versions, and what this environment can record")
    doctor.set_defaults(act=lambda asked: _print(_doctor()))
    return parser


def _print(lines: Iterable[str]) -> int:
    for line in lines:
        print(line.rstrip())
    return 0


def _doctor() -> Iterator[str]:
    from oddrank import doctor

    for key, value in doctor.examine():
        yield f"{key:<10} {value or '-'}"


def _read(folder: str, asked: argparse.Namespace, profiles: bool = True) -> Tables:
    names = asked.profile if profiles else ()
    return read(
        folder, [path for name in names for path in sorted(glob.glob(name)) or [name]], asked.notebook
    )


def _source(asked: argparse.Namespace) -> list[str]:
    def annotated(tables: Tables) -> AnnotatedSource:
        about = {"shapes": asked.shapes, "libraries": asked.libraries, "notebooks": asked.notebook}
        return annotate(tables, title=asked.title, **about)

    made = annotated(_read(asked.folder, asked))
    if asked.against:
        made = compare(annotated(_read(asked.against, asked, profiles=False)), made, asked.title)
    if asked.html:
        with open(asked.html, "w", encoding="utf-8") as file:
            file.write(made.page())
        return [asked.html]
    colour = sys.stdout.isatty() if asked.colour == "auto" else asked.colour == "always"
    return made.text(colour, shutil.get_terminal_size((118, 24)).columns).splitlines()


def _tables(asked: argparse.Namespace) -> Iterator[str]:
    found = _read(asked.folder, asked)
    if asked.rank and (missing := set(asked.rank) - set(found.ranks)):
        raise ValueError(f"there is no rank {min(missing)}: the trace has {', '.join(map(str, found.ranks))}")
    return _lines(found, asked)


def _lines(found: Tables, asked: argparse.Namespace) -> Iterator[str]:
    names = asked.table or SHOWN
    rows = {name: _rows(getattr(found, name), asked) for name in names}
    if asked.json:
        yield json.dumps({"torch": found.torch, "notes": found.notes, **rows}, indent=1)
        return
    for name in names:
        yield f"{name} ({len(rows[name])})"
        for line in _aligned(rows[name], COLUMNS[name]):
            yield f"  {line}"
    for note in found.notes:
        yield f"note: {printable(note)}"


def _rows(table: Table[Any], asked: argparse.Namespace) -> list[dict[str, Any]]:
    hidden = () if asked.operators else ("op", "kernel")
    wanted = (
        row
        for row in table
        if (not asked.rank or row.rank in asked.rank) and getattr(row, "kind", "") not in hidden
    )
    return Table(table.kind, wanted).dicts()


def _aligned(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    cells = [list(columns), *([_cell(row, column) for column in columns] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in cells]


def _cell(row: dict[str, Any], column: str) -> str:
    if column == "where":
        at = row.get("resume") or row["line"]
        text = f"{_short(places.label(row['file']))}:{at}" + ("" if row.get("exact", True) else "?")
    elif column == "func":
        text = _short(row["func"]) + (f", after line {row['resume']}" if row.get("resume") else "")
    else:
        value = row[column]
        text = _short("" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value))
    return printable(text)


def _short(text: str) -> str:
    return text if len(text) <= MOST_WIDE else text[: MOST_WIDE - 1] + "…"

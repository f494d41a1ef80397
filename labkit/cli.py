"""Lessons on compiled distributed PyTorch, and a look at your own script."""

from __future__ import annotations

import argparse
import atexit
import codecs
import errno
import gc
import importlib
import importlib.util
import io
import locale
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from labkit import __version__, files

STATUS = """\
exit status:
  0  done
  1  something failed; the output says what
  2  a request that cannot be met
  3  done, but the results could not be saved or printed
"""
UNWRITTEN = 3
LEFT = 141  # of a command whose reader left, as a shell gives it for SIGPIPE
# the commands of what the rest of labkit does not import, by the module that adds them
DOORS = ("labkit.lessons.door", "labkit.look.door", "ledger.door")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: by default those of the process.

    Returns:
        The exit status; 2, with one sentence of explanation, for a request that cannot be met.
    """
    if codecs.lookup(locale.getencoding()).name == "ascii":
        os.environ["PYTHONUTF8"] = "1"  # for the ranks: torch reads files of its own that are not ASCII
    # at its end, the interpreter would look for garbage among all that torch has made, for a second
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may take ASCII only
            stream.reconfigure(errors="backslashreplace")
    status = _status(arguments)
    try:
        if sys.stdout is not None:  # closed by the shell, as in `labkit list >&-`
            sys.stdout.flush()
    except OSError as error:
        # Python flushes what is left when it exits, and that has to go somewhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or _unwritten(error)
    return status


def _unwritten(error: OSError) -> int:
    """The exit status where standard output takes no more, with a sentence but where its reader left (`| head`)."""
    if isinstance(error, BrokenPipeError):
        return LEFT
    print(f"labkit: cannot write to standard output: {error.strerror}", file=sys.stderr)
    return UNWRITTEN


def _status(arguments: list[str] | None) -> int:
    try:
        given = _parser().parse_args(arguments)
        return given.act(given)
    except SystemExit as end:  # after --help and --version
        return end.code if isinstance(end.code, int) else 0
    except files.Unsaved as error:
        print(f"labkit: {error}", file=sys.stderr)
        return UNWRITTEN
    except UnicodeDecodeError as error:
        where = f"a file cannot be read as {error.encoding}, which this locale asks for"
        print(f"labkit: {where}: {error.reason}; PYTHONUTF8=1 or LC_ALL=C.UTF-8 helps", file=sys.stderr)
        return 2
    except (ValueError, RuntimeError) as error:
        print(f"labkit: {str(error).strip()}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None and error.errno in (
            errno.EPIPE,
            errno.ENOSPC,
        ):  # of a file it would be Unsaved
            return _unwritten(error)
        where = f"{error.filename}: " if error.filename else ""
        try:
            os.getcwd()
        except FileNotFoundError:
            where = "the current folder is not there any more: "
        print(f"labkit: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("labkit: there is not enough memory for this", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # registered last, called first: a second Ctrl-C must not break off the ending of the ranks
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        print("labkit: interrupted", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="labkit", description=__doc__, epilog=STATUS, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(act: Callable[[argparse.Namespace], int], name: str, what: str, **more: Any) -> Any:
        made = commands.add_parser(name, help=what, **more)
        made.set_defaults(act=act)
        return made

    def flags(command: argparse.ArgumentParser, **said: str) -> None:
        for name, what in said.items():
            command.add_argument(f"--{name}", action="store_true", help=what)

    doctor = command(_doctor, "doctor", "what this machine has, and what ranks would run on")
    flags(doctor, features="what needs private names of torch, and which versions have them")
    for name in DOORS:
        if importlib.util.find_spec(name.rpartition(".")[0]):
            importlib.import_module(name).add(commands)
    score = command(_score, "score", "your predictions in the lessons, beside what was measured")
    flags(score, json="print JSON")
    return parser


def _doctor(given: argparse.Namespace) -> int:
    from labkit import doctor

    if given.features:
        print(doctor.features())
        return 0
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

"""How a command of ours ends: in one sentence and an exit status, never in a traceback, wherever its output goes."""

from __future__ import annotations

import argparse
import atexit
import codecs
import errno
import gc
import io
import locale
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from oddrank import files
from oddrank.source.text import printable

__all__ = ["STATUS", "Parser", "run"]

STATUS = """\
exit status:
  0  done
  1  something failed; the output says what
  2  a request that cannot be met
  3  done, but the results could not be saved or printed
"""
UNWRITTEN = 3
LEFT = 141  # of a command whose reader left, as a shell gives it for SIGPIPE


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def run(
    name: str, parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None = None
) -> int:
    """Run a command line whose commands have set `act`.

    Args:
        name: Of the command.
        parser: Makes its parser.
        arguments: By default those of the process.

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
    status = _status(name, parser, arguments)
    try:
        if sys.stdout is not None:  # closed by the shell, as in `labkit list >&-`
            sys.stdout.flush()
    except OSError as error:
        # Python flushes what is left when it exits, and that has to go somewhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or _unwritten(name, error)
    return status


def _unwritten(name: str, error: OSError) -> int:
    """The exit status where standard output takes no more, with a sentence but where its reader left (`| head`)."""
    if isinstance(error, BrokenPipeError):
        return LEFT
    return _sentence(name, f"cannot write to standard output: {error.strerror}", UNWRITTEN)


def _sentence(name: str, said: str, status: int = 2) -> int:
    print(f"{name}: " + "\n".join(map(printable, said.splitlines())), file=sys.stderr)
    return status


def _status(name: str, parser: Callable[[], argparse.ArgumentParser], arguments: Sequence[str] | None) -> int:
    try:
        given = parser().parse_args(arguments)
        return given.act(given)
    except SystemExit as end:  # after --help and --version
        return end.code if isinstance(end.code, int) else 0
    except files.Unsaved as error:
        return _sentence(name, f"{error}", UNWRITTEN)
    except UnicodeDecodeError as error:
        where = f"a file cannot be read as {error.encoding}, which this locale asks for"
        return _sentence(name, f"{where}: {error.reason}; PYTHONUTF8=1 or LC_ALL=C.UTF-8 helps", 2)
    except (ValueError, RuntimeError) as error:
        return _sentence(name, f"{str(error).strip()}", 2)
    except OSError as error:
        if error.filename is None and error.errno in (
            errno.EPIPE,
            errno.ENOSPC,
        ):  # of a file it would be Unsaved
            return _unwritten(name, error)
        where = f"{error.filename}: " if error.filename else ""
        try:
            os.getcwd()
        except FileNotFoundError:
            where = "the current folder is not there any more: "
        return _sentence(name, f"{where}{error.strerror or error}", 2)
    except MemoryError:
        return _sentence(name, "there is not enough memory for this", 2)
    except KeyboardInterrupt:
        # registered last, called first: a second Ctrl-C must not break off the ending of the ranks
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        return _sentence(name, "interrupted", 130)

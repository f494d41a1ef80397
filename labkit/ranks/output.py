"""The output of ranks: printed as it comes, in whole lines, labelled by rank, on the streams of the running cell."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

MAX_LINE = 1 << 16  # a longer line is passed on in pieces, so that memory stays bounded
READ = 1 << 16


class Printer:
    """Prints one stream of one rank line by line, each after `[rank N] ` in place of torch's own `[rankN]:`.

    A carriage return starts the line again (progress bars). Bytes that are not UTF-8 appear as U+FFFD.

    Args:
        fd: The pipe to read.
        rank: The rank.
        error: Whether it is printed to stderr.
    """

    def __init__(self, fd: int, rank: int, error: bool):
        self.fd, self.label, self.error = fd, f"[rank {rank}] ", error
        self._torchs = re.compile(rf"\[rank{rank}\]: ?")  # torch's own label of a log line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._over = False  # the last thing printed ended in \r, so the next piece overwrites it
        self.open = True
        self.begun = False  # there may be an unfinished line

    def drain(self) -> bool:
        """Print what has arrived, at most 4 MiB of it at a time; True if that was the last of it."""
        for _ in range(64):
            try:
                data = os.read(self.fd, READ)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                self.open = False
                return True
            self.begun = True
            self._feed(self._decoder.decode(data))
        return False

    def _feed(self, text: str) -> None:
        *whole, self._rest = (self._rest + text.replace("\r\n", "\n")).split("\n")
        out = "".join(self._line(line) + "\n" for line in whole)
        if "\r" in self._rest:
            shown, _, self._rest = self._rest.rpartition("\r")
            if shown.strip("\r"):
                out += self._line(shown) + "\r"
                self._over = True
        while len(self._rest) > MAX_LINE:
            out += self.label + self._rest[:MAX_LINE] + "\n"
            self._rest = self._rest[MAX_LINE:]
        if out:
            self._stream().write(out)

    def _line(self, line: str) -> str:
        line = line.rsplit("\r", 1)[-1]
        torchs = self._torchs.match(line)
        return self.label + line[torchs.end() if torchs else 0 :]

    def finish(self) -> None:
        """Print what is left of an unfinished line; half a character appears as U+FFFD."""
        self.begun = False
        if left := self._decoder.decode(b"", final=True):
            self._feed(left)
        if self._rest:
            self._stream().write(self.label + self._rest + "\n")
            self._rest = ""

    def _stream(self):
        return sys.stderr if self.error else sys.stdout


@contextlib.contextmanager
def quiet_stderr(path: str = os.devnull) -> Iterator[None]:
    """In a block, append to a file, or drop, what this process writes to stderr, C++ and Dynamo included."""
    kept, other = os.dup(2), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(other, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(other)


def quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with stderr closed, C++ logs included, and without warnings: it provokes them on purpose.

    >>> quietly(lambda n: n + 1, 1)
    2
    """
    with quiet_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)

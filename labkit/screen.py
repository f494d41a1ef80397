"""Standard output and error of a command, whatever they are connected to.

A terminal may take ASCII only, `| head` stops reading, a disk is full, a stream is closed. None of it ends a command in
a traceback, and none of it loses a result that is also saved.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
from typing import Any

__all__ = ["UNWRITTEN", "Screen", "json_text", "keep_going"]

UNWRITTEN = 3  # the exit status of a command that did its work and could not write what it found
LEFT = 141  # of one whose reader left, as a shell gives it for SIGPIPE

# what labkit prints beyond ASCII, for a stream that cannot take it
PLAIN = {"·": "-", "×": "x", "µ": "u", "μ": "u", "→": "->", "–": "-", "—": "-", "−": "-", "≤": "<=", "≥": ">=",
         "≈": "~", "…": "...", "’": "'", "²": "^2", "\u00a0": " "}  # fmt: skip


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    cut = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in cut), error.end


codecs.register_error("labkit-plain", _plain)


class Screen:
    """Standard output and error while a command runs: `with Screen() as screen: ...`, then `screen.outcome(status)`.

    A first write to standard output that fails ends the command (SystemExit), unless `keep_going` was called.

    >>> with Screen() as screen:
    ...     print("as ever")
    as ever
    >>> screen.outcome(0)
    0
    """

    def __enter__(self) -> Screen:
        _open_missing()
        self._before = sys.stdout, sys.stderr
        self._out, self._err = _Stream(sys.stdout), _Stream(sys.stderr, patient=True)
        sys.stdout, sys.stderr = self._out, self._err  # type: ignore[assignment]
        return self

    def __exit__(self, *_: Any) -> None:
        self._out.patient = True
        self._out.flush()
        self._err.flush()
        sys.stdout, sys.stderr = self._before
        self._out.restore()
        self._err.restore()

    def outcome(self, status: int) -> int:
        """Report what became of standard output.

        Args:
            status: the exit status of the command.

        Returns:
            `status`, or where that is 0 a status that says what became of standard output.
        """
        error = self._out.error
        if error is None or isinstance(error, BrokenPipeError):
            return status or (0 if error is None else LEFT)
        with contextlib.suppress(OSError):
            why = error.strerror or error
            print(f"labkit: cannot write to standard output: {why}", file=sys.stderr, flush=True)
        return status or UNWRITTEN


class _Stream:
    """A stream that takes any text, keeps the first error, and drops what comes after it."""

    def __init__(self, stream: Any, patient: bool = False) -> None:
        self._stream, self.patient, self.error = stream, patient, None
        self._errors = None
        if isinstance(stream, io.TextIOWrapper):
            self._errors = stream.errors
            stream.reconfigure(errors="labkit-plain")

    error: OSError | None

    def restore(self) -> None:
        if self._errors is not None:
            self._stream.reconfigure(errors=self._errors)

    def write(self, text: str) -> int:
        return self._try(self._stream.write, text) or len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Any, *given: str) -> Any:
        if self.error is not None:
            return None
        try:
            return act(*given)
        except OSError as error:
            self.error = error
            with contextlib.suppress(OSError, ValueError):  # a stream without a file, or on a closed one
                # Python flushes what is left when it exits, and that has to go somewhere
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            if not self.patient:
                raise SystemExit(0) from None
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_going() -> None:
    """Let the command continue where nobody reads its output any more: what it finds is saved as well."""
    if isinstance(sys.stdout, _Stream):
        sys.stdout.patient = True


def json_text(text: str) -> str:
    """A JSON document that standard output can take: in ASCII where it has to be.

    >>> json_text('{"us": "2 µs"}')
    '{"us": "2 µs"}'
    """
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        return text
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), indent=1)


def _open_missing() -> None:
    """Open the standard streams that were closed at the start, before a socket or a file gets their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, closefd=False))

"""An exception of the reader's code as plain data: whatever it is like, describing it must not end the rank."""

from __future__ import annotations

import traceback
from typing import Any

from labkit.ranks import standing, wire


def message(error: BaseException) -> str:
    """The exception's text, or why it has none.

    >>> message(KeyError("lost"))
    "'lost'"
    """
    try:
        return str(error)
    except Exception as inner:
        return f"(no text: its __str__ raised {type(inner).__name__})"


def describe(error: BaseException) -> dict[str, Any]:
    """Its type, text, the reader's own frames, the whole traceback, its members and, where it travels, itself."""
    told = _tell(error)
    try:
        told["exception"] = wire.dumps(error.with_traceback(None))
    except Exception:
        told["exception"] = None
    return told


def _tell(error: BaseException) -> dict[str, Any]:
    trace = traceback.TracebackException.from_exception(error, compact=True)
    frames = [
        (
            standing.place(f.filename, f.lineno or 0, f.name),
            (f.line or "").strip(),
            standing.is_library(f.filename),
        )
        for f in trace.stack
        if f.filename not in standing.HIDDEN and not f.filename.startswith("<frozen")
    ]
    text = message(error)
    if isinstance(error, SyntaxError):
        text = "".join(trace.format_exception_only()).strip()
    notes = getattr(error, "__notes__", ())
    return {
        "type": type(error).__name__,
        "message": text,
        "frames": frames,
        "text": "".join(trace.format()),
        "notes": [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else [],
        "members": [_tell(member) for member in error.exceptions]
        if isinstance(error, BaseExceptionGroup)
        else [],
    }

"""Files that are whole or not there at all: the old content stays until the new one is complete."""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["Unsaved", "below", "folder", "writable", "write", "write_json"]

PROBE = bytes(16 * 1024)  # so much has to fit before anything is measured


class Unsaved(ValueError):
    """A result exists and could not be written; the message names the file or folder and the reason."""


def write(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file through a temporary file beside it, and make its folder where it is missing.

    Args:
        path: Of the file.
        data: Its new content.

    Returns:
        The path.

    Raises:
        OSError: As the system gives it; the file is then as it was.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/new/a.txt", b"whole").read_bytes()
    b'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(temporary, 0o644)  # mkstemp makes it private; what is saved here is meant to be shared
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def write_json(path: str | os.PathLike[str], body: Any) -> Path:
    """Write data as JSON that any reader takes: a number that is not finite becomes the text `inf`, `-inf` or `nan`.

    Args:
        path: of the file.
        body: dicts, lists, texts, numbers, booleans and None.

    Returns:
        The path.

    Raises:
        OSError: as the system gives it; the file is then as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     json.loads(write_json(f"{folder}/a.json", {"far": [1.5, float("inf")]}).read_text())
    {'far': [1.5, 'inf']}
    """
    text = json.dumps(_finite(body), indent=1, ensure_ascii=False, allow_nan=False)
    return write(path, (text + "\n").encode())


def _finite(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _finite(value) for key, value in body.items()}
    if isinstance(body, list | tuple):
        return [_finite(value) for value in body]
    return str(body) if isinstance(body, float) and not math.isfinite(body) else body


def below(path: Path) -> Path:
    """Return a path as short as one would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def folder(text: str) -> Path:
    """The type of a command line's argument that names a folder.

    Raises:
        ArgumentTypeError: The text is empty.

    >>> folder("runs").name
    'runs'
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("needs the name of a folder, and got none")
    return Path(text)


def writable(folder: Path, *names: str) -> None:
    """Check, before minutes of work, that files can be saved.

    Args:
        folder: Made where it is missing.
        names: Of the files.

    Raises:
        ValueError: They cannot be saved; the message gives the reason.
    """
    for path in (folder / name for name in names):
        if path.is_dir():
            raise ValueError(f"cannot write {path}: it is a folder, and a file has to go there")
    probe = folder / f".oddrank-write-probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(PROBE)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        there = folder.exists() and not folder.is_dir()
        why = "it is a file, and a folder is needed" if there else error.strerror or error
        raise ValueError(f"cannot write in {folder}: {why}") from error

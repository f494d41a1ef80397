"""Files that are whole or not there at all: the old content stays until the new one is complete."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

__all__ = ["folder", "writable", "write"]

PROBE = bytes(16 * 1024)  # so much has to fit before anything is measured


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

"""Atomic writes of files (the old content stays until the new is complete), and the folders of labkit."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

__all__ = ["Unsaved", "home", "lessons", "ours", "replace"]


class Unsaved(ValueError):
    """A result exists and could not be written; the message names the file or folder and the reason."""


def replace(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file through a temporary file beside it, and make its folder where it is missing.

    Args:
        path: of the file.
        data: its new content.

    Returns:
        The path.

    Raises:
        OSError: as the system gives it; the file is then as it was.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace(f"{folder}/new/a.txt", b"whole").read_bytes()
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


def home() -> Path:
    """The folder of the reader's own data; it need not exist yet.

    >>> import os
    >>> home() == Path(os.environ["LABKIT_HOME"])  # tests never touch a reader's own
    True
    """
    if named := os.environ.get("LABKIT_HOME"):
        return Path(os.path.expanduser(named)).absolute()
    user = Path(os.path.expanduser("~"))
    if sys.platform == "darwin":
        return user / "Library" / "Application Support" / "labkit"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or user / "AppData" / "Local") / "labkit"
    data = os.environ.get("XDG_DATA_HOME", "")
    # the XDG rules: a relative path is to be ignored
    return (Path(data) if os.path.isabs(data) else user / ".local" / "share") / "labkit"


def ours(path: str) -> Path:
    """The path of a file or folder that comes with labkit, in the checkout or in the installed package.

    Args:
        path: relative to the checkout; it need not exist.

    Returns:
        The absolute path.

    >>> ours("data/facts.toml").name, ours("notebooks").is_dir()
    ('facts.toml', True)
    """
    package = Path(__file__).resolve().parent
    beside = package.parent / path
    # site-packages may have a folder "data" of somebody else's
    return beside if (package.parent / "pyproject.toml").is_file() else package / "shipped" / path


def lessons() -> list[Path]:
    """The notebooks of the lessons, in order, in the checkout or in the installed package.

    >>> lessons()[0].name
    '00_start_here.ipynb'
    """
    return sorted(ours("notebooks").glob("*.ipynb"))

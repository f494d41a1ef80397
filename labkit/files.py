"""The files and folders of labkit and of its reader, and data as JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from oddrank.files import write

__all__ = [
    "Unsaved",
    "home",
    "lessons",
    "notebooks",
    "number",
    "ours",
    "write_json",
]


class Unsaved(ValueError):
    """A result exists and could not be written; the message names the file or folder and the reason."""


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
    return [path for path in notebooks() if path.name[:2].isdigit()]


def notebooks() -> list[Path]:
    """The notebooks of the lessons, and after them those that stand outside of their order.

    >>> notebooks()[-1].name
    'in_a_hurry.ipynb'
    """
    return sorted(ours("notebooks").glob("*.ipynb"))


def number(lesson: str | Path) -> str:
    """The number of a lesson, two digits and perhaps a letter.

    Args:
        lesson: the notebook's path or name.

    >>> number("04_graph_break_cliff"), number(Path("notebooks/10b_dtensor_compiled.ipynb"))
    ('04', '10b')
    """
    return Path(lesson).name.partition("_")[0]

"""The files and folders of labkit and of its reader."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = [
    "home",
    "lessons",
    "notebooks",
    "number",
    "ours",
]


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
    data = os.environ.get("XDG_DATA_HOME", "")
    # the XDG rules: a relative path is to be ignored
    return (Path(data) if os.path.isabs(data) else user / ".local" / "share") / "labkit"


def ours(path: str) -> Path:
    """The path of a file or folder that comes with labkit, in the checkout or in the installed package.

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

    >>> number("04_graph_break_cliff"), number(Path("notebooks/10b_dtensor_compiled.ipynb"))
    ('04', '10b')
    """
    return Path(lesson).name.partition("_")[0]

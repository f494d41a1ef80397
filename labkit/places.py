"""Short names of places in the reader's code, fit to be committed: `In [5]:3 (name)`, never a full path."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading

__all__ = ["is_library", "label", "place", "register", "rewrite"]

_labels: dict[str, str] = {}
_lock = threading.Lock()

# ipykernel writes each cell to <tmp>/ipykernel_<pid>/<hash>.py; IPython alone calls it <ipython-input-5-hash>
_CELL = re.compile(r"[\\/]ipykernel_\d+[\\/][^\\/]+\.py$")
_IPYTHON = re.compile(r"^<ipython-input-(\d+)-")
# a package may also come from a folder of another environment, or from the user's own one (pip install --user)
_INSTALLED = {p for k in ("purelib", "platlib") if (p := sysconfig.get_path(k))} | {
    p for p in sys.path if os.path.basename(os.path.normpath(p)) in ("site-packages", "dist-packages")
}
# our own packages, which stand side by side
_OURS = {os.path.join(os.path.dirname(os.path.dirname(__file__)), p) for p in ("labkit", "course", "ledger")}
_LIBRARIES = tuple({os.path.normpath(p) + os.sep for p in (*_INSTALLED, *_OURS)})
# what Inductor writes into its cache, wherever that is: the name is a hash of the code
_GENERATED = re.compile(r"[\\/]c[a-z2-7]{51}\.py$")
_STDLIB = os.path.normpath(sysconfig.get_path("stdlib")) + os.sep


def register(filename: str, label: str) -> None:
    """Show code compiled under a file name as a label, in this process and its forks.

    Args:
        filename: of the code.
        label: such as 'In [5]'.

    >>> register("/scratch/ipykernel_1/42.py", "In [5]")
    >>> place("/scratch/ipykernel_1/42.py", 3, "block")
    'In [5]:3 (block)'
    """
    with _lock:
        _labels[filename] = label


def label(filename: str) -> str:
    """The short name of a file: its registered label, a package path for installed code and Python's own, otherwise
    the bare file name.

    >>> import contextlib
    >>> label("/home/ada/project/model.py"), label(contextlib.__file__)
    ('model.py', 'python/contextlib.py')
    >>> label("/scratch/ipykernel_77/9.py")
    'In [?]'
    """
    with _lock:
        if filename in _labels:
            return _labels[filename]
    if match := _IPYTHON.match(filename):
        return f"In [{match[1]}]"
    if _CELL.search(filename):
        return "In [?]"
    if filename.startswith("<"):  # <string>, <stdin>, <frozen ...>, <eval_with_key>
        return filename
    whole = os.path.normpath(filename)
    for root in _LIBRARIES:
        if whole.startswith(root):
            within = os.path.dirname(os.path.dirname(root)) + os.sep if root[:-1] in _OURS else root
            return whole[len(within) :].replace(os.sep, "/")
    if whole.startswith(_STDLIB):
        return f"python/{whole[len(_STDLIB) :]}".replace(os.sep, "/")
    return os.path.basename(whole)


def place(filename: str, line: int | None, name: str = "") -> str:
    """One place in the code as `label:line (name)`.

    Args:
        filename: '' for an unknown place.
        line: None leaves it out.
        name: of the function; '' leaves it out.

    Returns:
        The place; '' for an unknown one.

    >>> place("/home/ada/project/model.py", 12, "forward")
    'model.py:12 (forward)'
    >>> place("", None)
    ''
    """
    if not filename:
        return ""
    where = label(filename) if line is None else f"{label(filename)}:{line}"
    return f"{where} ({name})" if name else where


def is_library(filename: str) -> bool:
    """Whether a file belongs to an installed package or to Python, or was written by Inductor: not the reader's code.

    labkit's own code counts as the reader's: its model is part of what is studied. Its wrappers around a script do not.

    >>> import logging
    >>> is_library(logging.__file__), is_library("/home/ada/project/model.py"), is_library("<frozen runpy>")
    (True, False, True)
    """
    if filename in _labels or _IPYTHON.match(filename):
        return False
    if filename.startswith("<") or _GENERATED.search(filename):
        return True
    whole = os.path.normpath(filename)
    if whole.startswith(tuple(root + os.sep for root in _OURS)):
        return whole.startswith(_WRAPPERS)
    return whole.startswith((*_LIBRARIES, _STDLIB))


_WRAPPERS = os.path.join(os.path.dirname(__file__), "look", "")
_PATH_AND_LINE = re.compile(
    r"""(?<![\w.-])(?P<path>(?:/|[A-Za-z]:\\)[^\s:"'<>]+\.py|<ipython-input-[^>]+>):(?P<line>\d+)"""
)
_PATH = re.compile(r"""(?<![\w.-])(?:/|[A-Za-z]:\\)[^\s:"'<>()]+\.py\b""")


def rewrite(text: str) -> str:
    """Replace every full path to Python code in a message by its short name.

    >>> rewrite("failed at /home/ada/project/model.py:12 in forward")
    'failed at model.py:12 in forward'
    >>> rewrite(f"# File: {__file__}:7 in label")
    '# File: labkit/places.py:7 in label'
    >>> rewrite("torch/_dynamo/guards.py:12")
    'torch/_dynamo/guards.py:12'
    """
    text = _PATH_AND_LINE.sub(lambda m: f"{label(m['path'])}:{m['line']}", text)
    return _PATH.sub(lambda m: label(m[0]), text)

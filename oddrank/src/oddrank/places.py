"""Short names of places in a program's code, fit to be committed: `In [5]:3 (name)`, never a full path."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading

__all__ = ["is_library", "label", "own", "place", "register", "rewrite"]

_labels: dict[str, str] = {}
_packages: dict[str, bool] = {}  # a folder that ends in a separator -> whether it is a library
_lock = threading.Lock()

# ipykernel writes each cell to <tmp>/ipykernel_<pid>/<hash>.py; IPython alone calls it <ipython-input-5-hash>
_CELL = re.compile(r"[\\/]ipykernel_\d+[\\/][^\\/]+\.py$")
_IPYTHON = re.compile(r"^<ipython-input-(\d+)-")
# a package may also come from a folder of another environment, or from the user's own one (pip install --user)
_INSTALLED = {p for k in ("purelib", "platlib") if (p := sysconfig.get_path(k))} | {
    p for p in sys.path if os.path.basename(os.path.normpath(p)) in ("site-packages", "dist-packages")
}
_LIBRARIES = tuple({os.path.normpath(p) + os.sep for p in _INSTALLED})
_STDLIB = os.path.normpath(sysconfig.get_path("stdlib")) + os.sep
# the same on the machine that a trace comes from
_ELSEWHERE = re.compile(r"^.*[\\/](?:site|dist)-packages[\\/]|^.*[\\/]lib[\\/]python3(?:\.\d+)?[\\/]")
# what Inductor writes into its cache, wherever that is: the name is a hash of the code
_GENERATED = re.compile(r"[\\/]c[a-z2-7]{51}\.py$")


def register(filename: str, label: str) -> None:
    """Show code compiled under a file name as a label, in this process and its forks.

    Args:
        filename: Of the code.
        label: Such as 'In [5]'.

    >>> register("/scratch/ipykernel_1/42.py", "In [5]")
    >>> place("/scratch/ipykernel_1/42.py", 3, "block")
    'In [5]:3 (block)'
    """
    with _lock:
        _labels[filename] = label


def own(folder: str, library: bool = False) -> None:
    """Say of a package's folder whose code it is, wherever it is installed.

    Args:
        folder: The folder.
        library: Whether it is a library; otherwise its code is the program's.

    >>> own("/opt/site-packages/lessons")
    >>> is_library("/opt/site-packages/lessons/model.py"), label("/opt/site-packages/lessons/model.py")
    (False, 'lessons/model.py')
    """
    with _lock:
        _packages[os.path.normpath(folder) + os.sep] = library


own(os.path.dirname(__file__), library=True)


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
    if folder := _package(whole):
        return whole[len(os.path.dirname(folder[:-1])) + 1 :].replace(os.sep, "/")
    for root in _LIBRARIES:
        if whole.startswith(root):
            return whole[len(root) :].replace(os.sep, "/")
    if whole.startswith(_STDLIB):
        return f"python/{whole[len(_STDLIB) :]}".replace(os.sep, "/")
    return (
        _ELSEWHERE.sub("", whole).replace(os.sep, "/") if _ELSEWHERE.match(whole) else os.path.basename(whole)
    )


def _package(whole: str) -> str:
    """The registered folder that a file is in, the innermost one; '' for none."""
    return max((folder for folder in tuple(_packages) if whole.startswith(folder)), key=len, default="")


def place(filename: str, line: int | None, name: str = "") -> str:
    """One place in the code as `label:line (name)`.

    Args:
        filename: '' for an unknown place.
        line: None leaves it out.
        name: Of the function; '' leaves it out.

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
    """Whether a file is not the program's: an installed package's or Python's own, here or where a trace comes from, or
    generated.

    >>> import logging
    >>> is_library(logging.__file__), is_library("/home/ada/project/model.py"), is_library("<frozen runpy>")
    (True, False, True)
    >>> is_library("/opt/lib/python3.11/site-packages/torch/nn/functional.py")
    True
    """
    if filename in _labels or _IPYTHON.match(filename):
        return False
    if filename.startswith("<") or _GENERATED.search(filename):
        return True
    whole = os.path.normpath(filename)
    if folder := _package(whole):
        return _packages[folder]
    return whole.startswith((*_LIBRARIES, _STDLIB)) or bool(_ELSEWHERE.match(whole))


_PATH_AND_LINE = re.compile(
    r"""(?<![\w.-])(?P<path>(?:/|[A-Za-z]:\\)[^\s:"'<>]+\.py|<ipython-input-[^>]+>):(?P<line>\d+)"""
)
_PATH = re.compile(r"""(?<![\w.-])(?:/|[A-Za-z]:\\)[^\s:"'<>()]+\.py\b""")


def rewrite(text: str) -> str:
    """Replace every full path to Python code in a message by its short name.

    >>> rewrite("failed at /home/ada/project/model.py:12 in forward")
    'failed at model.py:12 in forward'
    >>> rewrite("torch/_dynamo/guards.py:12")
    'torch/_dynamo/guards.py:12'
    """
    text = _PATH_AND_LINE.sub(lambda m: f"{label(m['path'])}:{m['line']}", text)
    return _PATH.sub(lambda m: label(m[0]), text)

"""The torch versions that labkit supports, and how the rest of this package gets a private torch name.

`require`, `find` and `replaced` are called with the whole name and the versions that have it; without versions all
supported ones do. `labkit doctor` reads these calls.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
from typing import Any
from unittest import mock

SUPPORTED = ("2.11", "2.15")
# the whole suite passed on these: 2.13.0; 2.15.0 on 2026-11-29, but for the browser and the executed notebooks
TESTED = ("2.13.0", "2.15.0")
# What passed on the others, on a CPU with their CUDA builds: the quick tests on 2026-11-28, with one fix since; the
# lessons on 2026-11-22, before the third edition. The ledger of this edition ran on all five: data/recorded/torch-*.
RUN = {
    "2.14.1": "the quick tests passed; an eager functional collective is 2 operations",
    "2.14.0": "the lessons of 2026-11-22 ran; an eager functional collective is 2 operations",
    "2.12.0": "the quick tests passed, the lessons of 2026-11-22 ran",
    "2.11.0": (
        "the quick tests passed, the lessons of 2026-11-22 ran; shapes of collectives and regions without a graph are"
        " not recorded, there are no graphs of streams but those shipped, and compiling again on another thread crashes"
        " in torch itself"
    ),
}
# Where a range comes from: each name was looked up in these wheels (Python 3.11; macOS, whose are the smallest, but
# for 2.13.0), in the Python sources or in libtorch_python. That it is there does not say that it still does the same.
READ = (
    "names looked up in the released wheels of torch 2.11.0, 2.12.0, 2.13.0, 2.14.0 and 2.15.0; "
    f"run in full on {', '.join(TESTED)}, in part on {', '.join(RUN)}"
)


_MISSING = object()


class UnsupportedTorch(RuntimeError):
    """The installed torch is outside the supported range, or lacks a name that labkit needs."""


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def within(version: str, since: str = SUPPORTED[0], until: str = SUPPORTED[1]) -> bool:
    """Say whether a torch version such as '2.13.0+cpu' is in a range, by default in the supported one.

    >>> within("2.13.0+cpu"), within("2.13.0", since="2.14"), within("2.14.1", until="2.14")
    (True, False, True)
    """
    return _numbers(since) <= _numbers(version) <= _numbers(until)


def check_version(version: str) -> None:
    """Check that a torch version such as '2.13.0+cpu' is within 2.11 to 2.15.

    Raises:
        UnsupportedTorch: If it is not.

    >>> check_version("2.13.0+cpu")
    """
    if not within(version):
        raise UnsupportedTorch(f"torch {version} is installed; labkit supports torch {span(*SUPPORTED)}")


@functools.cache
def span(since: str, until: str) -> str:
    """Give a range of torch versions in words.

    Raises:
        ValueError: If it is no range within the supported versions.

    >>> span("2.12", "2.14"), span("2.13", "2.13")
    ('2.12 to 2.14', '2.13')
    """
    try:
        low, first, last, high = map(_numbers, (SUPPORTED[0], since, until, SUPPORTED[1]))
        right = low <= first <= last <= high
    except ValueError:
        right = False
    if not right:
        raise ValueError(f"from {since!r} to {until!r} is no range within torch {' to '.join(SUPPORTED)}")
    return since if since == until else f"{since} to {until}"


def find(dotted: str, default: Any = None, *, since: str = SUPPORTED[0], until: str = SUPPORTED[1]) -> Any:
    """Import a torch name by its dotted path, where this torch has it.

    Args:
        dotted: A module, or an attribute of a module, class or object.
        default: What is returned where this torch lacks it.
        since: The first torch version that has it.
        until: The last one.

    >>> find("torch.distributed._functional_collectives").__name__
    'torch.distributed._functional_collectives'
    >>> find("torch._dynamo.nothing.such", "nothing")
    'nothing'
    """
    span(since, until)
    home, _, name = dotted.rpartition(".")
    try:
        return getattr(sys.modules[home], name)  # 0.3 us where it is imported, and 15 us the other way
    except (KeyError, AttributeError):
        try:
            return pkgutil.resolve_name(dotted)
        except (ImportError, AttributeError):
            return default


def require(dotted: str, *others: str, since: str = SUPPORTED[0], until: str = SUPPORTED[1]) -> Any:
    """Import a torch name by its dotted path.

    Args:
        dotted: A module, or an attribute of a module, class or object.
        others: Names that it has on other versions; the first one that is there is taken.
        since: The first torch version that has one of them.
        until: The last one.

    Raises:
        UnsupportedTorch: If the installed torch lacks it; it names the torch version and those that have it.

    >>> require("torch._dynamo.nothing", since="2.14")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    labkit.torch_compat.versions.UnsupportedTorch: torch ... has no torch._dynamo.nothing; torch 2.14 to 2.15 has it
    """
    for name in (dotted, *others):
        if (found := find(name, _MISSING, since=since, until=until)) is not _MISSING:
            return found
    import torch

    names = " or ".join((dotted, *others))
    raise UnsupportedTorch(f"torch {torch.__version__} has no {names}; torch {span(since, until)} has it")


def replaced(dotted: str, stand_in: Any, *, since: str = SUPPORTED[0], until: str = SUPPORTED[1]) -> Any:
    """Give a context in which something else stands in for a torch name; its `start()` leaves it there.

    Args:
        dotted: An attribute of a module or class.
        stand_in: What stands there instead.
        since: The first torch version that has it.
        until: The last one.

    Raises:
        UnsupportedTorch: If the installed torch lacks it.

    >>> with replaced("torch._dynamo.reset", "nothing"):
    ...     require("torch._dynamo.reset")
    'nothing'
    """
    require(dotted, since=since, until=until)
    return mock.patch(dotted, stand_in)

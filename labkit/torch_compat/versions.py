"""Which torch labkit works on, and how one of its private names is asked for: by name, with a clear error.

Every other part of this package states in `FEATURES` what it gives, on which torch versions, and by which names.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

SUPPORTED = ("2.11", "2.15")
TESTED = ("2.13.0",)  # the whole test suite passed on these
# What passed on others, on CPU with their CUDA builds, 2026-11-22
RUN = {
    "2.15.0": (
        "the lessons ran, and the tests passed but for those of kernels and the browser, which were not run; an eager"
        " functional collective is 2 operations here and not 3, gradients pass through a functional average, Inductor"
        " moves some collectives by default, and graphs of streams tie each event to the data behind it"
    ),
    "2.14.0": (
        "the lessons ran and the quick tests passed, slow tests were not run; an eager functional collective is 2"
        " operations"
    ),
    "2.12.0": "the lessons ran and the quick tests passed, slow tests were not run",
    "2.11.0": (
        "the lessons ran and the quick tests passed, slow tests were not run; shapes of collectives are not"
        " recorded, there are no graphs of streams but those shipped, and compiling again on another thread crashes in"
        " torch itself"
    ),
}
# Where a range comes from: each name was looked up in these wheels (Python 3.11; macOS, whose are the smallest, but
# for 2.13.0), in the Python sources or in libtorch_python. That it is there does not say that it still does the same.
READ = (
    "names looked up in the released wheels of torch 2.11.0, 2.12.0, 2.13.0, 2.14.0 and 2.15.0; "
    f"run in full on {', '.join(TESTED)}, in part on {', '.join(RUN)}"
)


class UnsupportedTorch(RuntimeError):
    """The installed torch is outside the supported range, or lacks a name that labkit needs."""


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def check_version(version: str) -> None:
    """Raise UnsupportedTorch when `version` (such as '2.13.0+cpu') is outside 2.11 to 2.15.

    >>> check_version("2.13.0+cpu")
    """
    if not _numbers(SUPPORTED[0]) <= _numbers(version) <= _numbers(SUPPORTED[1]):
        low, high = SUPPORTED
        raise UnsupportedTorch(f"torch {version} is installed; labkit supports torch {low} to {high}")


def require(dotted: str) -> Any:
    """Import a private torch name by its dotted path, or say which torch lacks it.

    >>> require("torch.distributed._functional_collectives").__name__
    'torch.distributed._functional_collectives'
    """
    module, _, name = dotted.rpartition(".")
    try:
        try:
            return importlib.import_module(dotted)
        except ModuleNotFoundError:
            return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        import torch

        low, high = SUPPORTED
        raise UnsupportedTorch(
            f"torch {torch.__version__} has no {dotted}, which this needs; labkit supports torch {low} to {high}"
        ) from None


def there(dotted: str) -> bool:
    """Whether the installed torch has a name, which may also be an attribute of a class or of an object.

    >>> there("torch._dynamo.reset"), there("torch.Tensor.shape"), there("torch._dynamo.nothing.such")
    (True, True, False)
    """
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
            break
        except ImportError:
            continue
    else:
        return False
    try:
        for name in parts[cut:]:
            found = getattr(found, name)
    except AttributeError:
        return False
    return True


@dataclass(frozen=True)
class Feature:
    """What a part gives, the first and the last supported torch that have it, by which names, and who misses it.

    since, until: such as '2.11'; what is older than the supported range begins with it. Both '' where nobody looked
    further than the tested version. needs: dotted names; of several in one string, with spaces between, one is enough.
    without: what a user loses. source: where the range comes from. Raises ValueError for a range that is none.

    >>> gone = Feature("a feature", "2.12", "2.14", ("torch._dynamo.reset", "torch._C._no_such_name"), "nothing")
    >>> gone.versions, gone.missing()
    ('2.12 to 2.14', ('torch._C._no_such_name',))
    >>> Feature("another", "", "", (), "nothing").versions
    '2.13.0 (others not looked up)'
    """

    title: str
    since: str
    until: str
    needs: tuple[str, ...]
    without: str
    source: str = READ

    def __post_init__(self) -> None:
        if self.since == self.until == "":
            return
        try:
            low, first, last, high = map(_numbers, (SUPPORTED[0], self.since, self.until, SUPPORTED[1]))
        except ValueError:
            low, first, last, high = (0, 0), (1, 0), (0, 0), (0, 0)
        if not low <= first <= last <= high:
            raise ValueError(
                f"{self.title}: from {self.since!r} to {self.until!r} is no range within {' to '.join(SUPPORTED)}"
            )

    @property
    def versions(self) -> str:
        """The range in words."""
        if not self.since:
            return f"{', '.join(TESTED)} (others not looked up)"
        return self.since if self.since == self.until else f"{self.since} to {self.until}"

    def missing(self) -> tuple[str, ...]:
        """Those of the needed names that the installed torch lacks."""
        return tuple(need for need in self.needs if not any(map(there, need.split())))

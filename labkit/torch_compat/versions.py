"""The torch versions that labkit supports, and `require`, which imports a private torch name or says it is missing.

Every other part of this package states in `FEATURES` what it gives, on which torch versions, and by which names.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

SUPPORTED = ("2.11", "2.15")
TESTED = ("2.13.0", "2.15.0")  # the whole test suite passed on these
# What passed on others, on CPU with their CUDA builds, on 2026-11-23; so did the ledger of claims. The lessons ran on
# them on 2026-11-22, before lessons 13 to 19 had their present form.
RUN = {
    "2.14.0": "the quick tests passed, the lessons of 2026-11-22 ran; an eager functional collective is 2 operations",
    "2.12.0": "the quick tests passed, the lessons of 2026-11-22 ran",
    "2.11.0": (
        "the quick tests passed, the lessons of 2026-11-22 ran; shapes of collectives are not recorded, there are"
        " no graphs of streams but those shipped, and compiling again on another thread crashes in torch itself"
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
    """Check that a torch version such as '2.13.0+cpu' is within 2.11 to 2.15.

    Raises:
        UnsupportedTorch: If it is not.

    >>> check_version("2.13.0+cpu")
    """
    if not _numbers(SUPPORTED[0]) <= _numbers(version) <= _numbers(SUPPORTED[1]):
        low, high = SUPPORTED
        raise UnsupportedTorch(f"torch {version} is installed; labkit supports torch {low} to {high}")


def require(dotted: str) -> Any:
    """Import a private torch name by its dotted path.

    Raises:
        UnsupportedTorch: If the installed torch lacks it; it names the torch version and the supported range.

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
    """Say whether the installed torch has a name: a module, or an attribute of a module, class or object.

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
    """A feature of labkit that needs private names of torch, and the torch versions that have them.

    Args:
        title: The feature in a few words.
        needs: Dotted torch names. Where one string holds several names with spaces between, one of them is enough.
        without: What a user loses where a name is missing.
        since: The first supported torch version that has the names, such as '2.12'.
        until: The last one.
        source: Where this range comes from.

    Raises:
        ValueError: If `since` to `until` is no range within the supported versions.

    >>> gone = Feature("a feature", ("torch._dynamo.reset", "torch._C._no_such_name"), "nothing", "2.12", "2.14")
    >>> gone.versions, gone.missing()
    ('2.12 to 2.14', ('torch._C._no_such_name',))
    """

    title: str
    needs: tuple[str, ...]
    without: str
    since: str = SUPPORTED[0]
    until: str = SUPPORTED[1]
    source: str = READ

    def __post_init__(self) -> None:
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
        """Give the range in words: '2.12 to 2.14', or '2.13'."""
        return self.since if self.since == self.until else f"{self.since} to {self.until}"

    def missing(self) -> tuple[str, ...]:
        """Return the needed names that the installed torch lacks."""
        return tuple(need for need in self.needs if not any(map(there, need.split())))

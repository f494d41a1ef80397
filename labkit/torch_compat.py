"""The only file that touches a private or version-dependent torch name.

Everything here works on torch 2.11 to 2.15; a name that the installed torch lacks raises `UnsupportedTorch`,
which says the name, the installed version and the supported range.
"""

from __future__ import annotations

import importlib
from typing import Any

SUPPORTED = ("2.11", "2.15")


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


def __getattr__(name: str) -> Any:
    """`funcol`, resolved on first use so that importing this module imports no torch."""
    if name == "funcol":
        return require("torch.distributed._functional_collectives")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def dynamo_reset() -> None:
    """Forget everything Dynamo compiled or skipped in this process (`torch._dynamo.reset`)."""
    require("torch._dynamo").reset()


def fake_store() -> Any:
    """A store for the 'fake' backend, whose collectives return at once and move nothing (torch's testing fake_pg)."""
    return require("torch.testing._internal.distributed.fake_pg").FakeStore()

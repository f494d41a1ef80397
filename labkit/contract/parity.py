"""Settings compared between ranks at start-up: whatever changes graphs or the choice of kernels.

Enforces, of topic 12's table "Rank-parity invariants", the column *at init* of the rows Topology, Compile mode,
Kernel/backend selection, Optional phases, and Drift tripwires. What a setting resolves to counts, not what was asked:
'auto' on two ranks can mean two kernels. Copy this file and exchange.py; they need only torch.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from labkit.contract.exchange import ContractError, Exchange, by_rank, differences

__all__ = ["UNSET", "ParityError", "assert_parity", "settings", "versions"]

UNSET = "not set"


class ParityError(ContractError):
    """Ranks run with different settings. `differs` has each rank's value by the name of the setting."""

    def __init__(self, differs: Mapping[str, Mapping[int, str]], compared: int) -> None:
        self.differs, self.compared = {key: dict(values) for key, values in differs.items()}, compared
        lines = [f"    {key}: {by_rank(values)}" for key, values in differs.items()]
        super().__init__("\n".join([f"{len(differs)} of {compared} settings differ between ranks:", *lines]))

    def __reduce__(self) -> tuple[type[ParityError], tuple[Any, ...]]:
        return type(self), (self.differs, self.compared)  # an exception pickles by its message otherwise


def versions() -> dict[str, str]:
    """Return what this rank runs on: Python, torch, CUDA, device and torch's global switches.

    >>> "torch" in versions(), "default dtype" in versions()
    (True, True)
    """
    import torch

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "float32 matmul": torch.get_float32_matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "default dtype": str(torch.get_default_dtype()),
        "grad enabled": str(torch.is_grad_enabled()),
    }
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["capability"] = str(torch.cuda.get_device_capability())
    return found


def settings(
    env: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    effective: Mapping[str, Callable[[], Any]] | None = None,
    topology: Mapping[str, Any] | None = None,
    with_versions: bool = True,
) -> dict[str, str]:
    """Collect this rank's settings as text, one name each, for `assert_parity`.

    Args:
        env: The names of environment variables.
        flags: Values as they were asked for.
        effective: Functions that return what was chosen here, such as the attention backend that 'auto' became. It
            stands under 'NAME in effect'; an exception is a value too.
        topology: The world size, the degree of parallelism, roles.
        with_versions: Include `versions()`.

    >>> found = settings(flags={"attention": "auto"}, effective={"attention": lambda: "flash"}, with_versions=False)
    >>> found["flag attention"], found["attention in effect"]
    ("'auto'", "'flash'")
    """
    found = {f"env {name}": os.environ.get(name, UNSET) for name in env}
    found |= {f"flag {name}": repr(value) for name, value in (flags or {}).items()}
    found |= {f"topology {name}": repr(value) for name, value in (topology or {}).items()}
    for name, resolve in (effective or {}).items():
        try:
            found[f"{name} in effect"] = repr(resolve())
        except Exception as error:
            found[f"{name} in effect"] = f"{type(error).__name__}: {error}"
    return found | ({f"version {name}": value for name, value in versions().items()} if with_versions else {})


def assert_parity(exchange: Exchange, mine: Mapping[str, Any]) -> dict[str, str]:
    """Log this rank's settings, and check that all ranks have the same. Call it after start-up and after any change.

    Args:
        exchange: How the ranks tell each other values.
        mine: This rank's settings by name.

    Returns:
        The settings as text.

    Raises:
        ParityError: On every rank, naming each setting that differs with each rank's value.
        Absent: After the exchange's deadline, for a rank that never comes.

    >>> from labkit.contract.exchange import rehearse
    >>> print(rehearse(2, lambda exchange: assert_parity(exchange, {"compile": exchange.rank == 0}))[1])
    1 of 1 settings differ between ranks:
        compile: rank 0 True, rank 1 False
    """
    said = {str(key): str(value) for key, value in mine.items()}
    logging.getLogger(__name__).info("rank %d: %s", exchange.rank, said)
    every = exchange.gather("parity", said)
    if differs := differences(every, UNSET):
        raise ParityError(differs, len({key for found in every.values() for key in found}))
    return said

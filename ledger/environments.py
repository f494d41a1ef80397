"""The ledger on another torch."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from oddrank.environments import command, numbers

import labkit
import ledger
import oddrank
from oddrank import environments

__all__ = ["needs", "numbers", "options", "run"]


def needs() -> list[str]:
    """The names of the packages that labkit needs, without torch, and without oddrank, which stands beside it.

    >>> "numpy" in needs(), "torch" in needs(), "oddrank" in needs()
    (True, False, False)
    """
    listed = "\n".join(importlib.metadata.requires("labkit") or [])
    return re.findall(r"^(?!torch\b|oddrank\b)([\w.-]+)(?!.*extra ==)", listed, re.MULTILINE)


def options() -> tuple[list[str], dict[str, str]]:
    """What `oddrank.environments.options` gives for the ledger and what it imports."""
    return environments.options(needs(), (labkit, ledger, oddrank))


def run(version: str, arguments: Sequence[str], into: Path) -> int:
    """Run `labkit ledger` with another torch, and keep its results.

    Args:
        version: of torch.
        arguments: further arguments of `labkit ledger`.
        into: folder of the results.

    Returns:
        The exit status.

    Raises:
        ValueError: the version is no release that labkit supports, uv is not there, or it cannot install; the message
            has uv's own words.
    """
    version, (more, env) = numbers(version), options()
    python = command(version, more, env)
    process = subprocess.Popen([*python, "-m", "labkit", "ledger", *arguments, "--save", str(into)], env=env)
    try:
        return process.wait()
    except KeyboardInterrupt:  # it got the signal as well, and ends its ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        raise
    finally:
        process.terminate()  # uv hands it on; killed, it would leave the ledger behind

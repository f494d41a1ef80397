"""The ledger on another torch."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from labkit.environments import command, numbers, options

__all__ = ["numbers", "options", "run"]


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

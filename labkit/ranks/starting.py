"""How the ranks of one machine are started: forked by the zygote, or as fresh interpreters."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from labkit.ranks import fresh, spawn
from labkit.ranks.environment import complete, merged
from labkit.ranks.nodes.driver import Nodes
from labkit.ranks.pool import Starter


def how_to_start(start: str) -> str:
    """'zygote' or 'fresh'. Raises ValueError for a way that this system does not have.

    >>> how_to_start("fresh")
    'fresh'
    """
    if sys.platform == "win32":
        raise ValueError("Ranks needs Linux or macOS: on Windows, work in WSL2, which is Linux")
    if start not in ("auto", "zygote", "fresh"):
        raise ValueError(f"start must be 'auto', 'zygote' or 'fresh', got {start!r}")
    if start == "zygote" and sys.platform != "linux":
        raise ValueError(f"start='zygote' needs Linux (WSL2 included), and this is {sys.platform}")
    return ("zygote" if sys.platform == "linux" else "fresh") if start == "auto" else start


def starter(
    how: str | Nodes, environ: Mapping[str, str], env: Mapping[str, str | None]
) -> tuple[Starter, dict[str, str | None]]:
    """What starts ranks in `environ` with `env` on top, and the variables that each of them has to set or unset."""
    if isinstance(how, Nodes):
        return how, dict(env)  # each machine has its own environment
    wanted = complete(merged(environ, env))
    local = spawn.shared(wanted) if how == "zygote" else fresh.Interpreters(wanted)
    return local, local.started.overlay(wanted)


def why_slow(how: str) -> str:
    """Why starting ranks takes seconds here, '' where it does not."""
    if how != "fresh":
        return ""
    linux = sys.platform == "linux"
    reason = "start='fresh'" if linux else f"forking prepared ranks needs Linux, this is {sys.platform}"
    return f"{reason}: {fresh.WHY}"

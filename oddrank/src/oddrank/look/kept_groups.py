"""Process groups are freed when their threads are at rest: torch can lock up where they are not."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from oddrank import torch_names

__all__ = ["KEPT_S", "KeptGroups"]

KEPT_S = 2.0  # after the program has let go of a group


class KeptGroups:
    """Holds the process groups of this rank until some time after the program has destroyed them.

    A thread of gloo's that has ended a collective of a backward frees what autograd kept for it, and needs Python's
    lock for that. A group that is freed in the same moment waits for this thread, and holds the lock: the process hangs
    (torch 2.13: `_engine_run_backward` in torch/autograd/graph.py, `~ProcessGroupGloo`). A script that ends right after
    its last step, as many do, can meet that without look, too.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, float] = {}

    def look(self) -> None:
        """Hold the groups that are up, and let go of those that are gone for long enough."""
        now = time.monotonic()
        with contextlib.suppress(Exception):  # torch is being set up, or has changed
            self._seen |= dict.fromkeys(torch_names.process_groups(), now)
        for group in [group for group, at in self._seen.items() if now - at > KEPT_S]:
            del self._seen[group]

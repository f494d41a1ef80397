"""The ranks on which probes run."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import hardware
from labkit.ranks import Ranks
from labkit.ranks.output import quietly

__all__ = ["Bench", "thread_names"]

# what a launch script may have set, and what would change what a GPU does side by side
NEUTRAL = {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}


class Bench:
    """The ranks that probes share: started on first use, and ended together.

    They share compile caches that are empty at first: a graph that an earlier run left would not be made again, and a
    probe that looks at it would see none.

    >>> with Bench() as bench:
    ...     bench.ranks(2, "gloo") is bench.ranks(2, "gloo")
    True
    """

    def __init__(self) -> None:
        self._ranks: dict[tuple, Ranks] = {}
        self._caches = tempfile.TemporaryDirectory(prefix="labkit-ledger-", ignore_cleanup_errors=True)

    def ranks(
        self, world_size: int = 2, backend: str = "gloo", device: str = "cpu", **settings: Any
    ) -> Ranks:
        """Start ranks of this size, backend and device, or return those that run already.

        Raises:
            ValueError: as for `Ranks`.
        """
        key = (world_size, backend, device, repr(sorted(settings.items())))
        if key not in self._ranks:
            caches = {
                "TORCHINDUCTOR_CACHE_DIR": self._caches.name,
                "TRITON_CACHE_DIR": f"{self._caches.name}/triton",
            }
            given = {"timeout": 120, "quiet": True, **settings, "env": caches | settings.get("env", {})}
            self._ranks[key] = Ranks(world_size, device, backend, **given)
        return self._ranks[key]

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        ranks: int = 2,
        backend: str = "gloo",
        device: str = "cpu",
    ) -> list[Any]:
        """Call a function on shared ranks, and drop what torch writes to stderr meanwhile.

        Args:
            function, arguments: the call.
            ranks: how many.
            backend, device: of the ranks.

        Returns:
            The value of each rank, in rank order.

        Raises:
            RankError: the function failed on a rank.
        """
        settings = {"env": NEUTRAL} if device == "cuda" else {}
        found = self.ranks(ranks, backend, device, **settings).run(quietly, function, *arguments)
        return list(found.values())

    def on_gpus(self, function: Callable[..., Any], *arguments: Any, ranks: int = 0) -> list[Any]:
        """Call a function on one rank for each GPU over NCCL, on two where there are two.

        Args:
            function: what is called on each rank.
            arguments: what it is called with.
            ranks: so many ranks, whether they share a GPU or not; 0 for one for each GPU.

        Returns:
            The value of each rank, in rank order.

        Raises:
            ValueError: there is no GPU.
            RankError: the function failed on a rank.
        """
        return self.run(
            function,
            *arguments,
            ranks=ranks or min(2, len(hardware.gpus())) or 1,
            backend="nccl",
            device="cuda",
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        for ranks in self._ranks.values():
            ranks.close()
        self._ranks.clear()
        self._caches.cleanup()


def thread_names() -> list[str]:
    """List the names of the threads of this process, each once and sorted.

    Raises:
        OSError: there is no /proc, so that a probe tells nothing there.

    >>> Path("/proc/self/task").is_dir() and len(thread_names()) > 0 or "no /proc here"
    True
    """
    names = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # one that has just ended
            names.add((task / "comm").read_text().strip())
    return sorted(names)

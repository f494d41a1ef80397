"""labkit: ranks, recording, timing and drawing for the lessons; tools for your own program and for dead jobs."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# name -> module: resolved on first use, so that `import labkit` imports no torch, pandas or matplotlib
_WHERE = {
    "Ranks": "labkit.ranks",
    "RankError": "labkit.ranks",
    "PerRank": "labkit.per_rank",
    "Report": "labkit.report",
    "Frames": "labkit.records",
    "diff": "labkit.records",
    "inspect": "labkit.records",
    "merge": "labkit.records",
    "record": "labkit.records",
    "predict": "labkit.study",
}

_PARTS = (
    "contract",
    "hardware",
    "lessons",
    "look",
    "ranks",
    "records",
    "report",
    "study",
    "timing",
    "trace",
    "views",
)

__all__ = [
    "Frames",
    "PerRank",
    "RankError",
    "Ranks",
    "Report",
    "diff",
    "inspect",
    "merge",
    "predict",
    "record",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in _PARTS:
        return importlib.import_module(f"labkit.{name}")
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})


def load_ipython_extension(shell: Any) -> None:
    """Load the extension (`%load_ext labkit`): add the `%%ranks` cell magic and start the zygote in the background."""
    from labkit.ranks import magic

    magic.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Unload the extension (`%unload_ext labkit`): end the ranks and the zygote that the magic started."""
    from labkit.ranks import magic

    magic.unload(shell)

"""labkit: ranks, timing and drawing for the lessons."""

from __future__ import annotations

import importlib
import os
from typing import Any

from oddrank import places

__version__ = "0.1.0"

# name -> module: resolved on first use, so that `import labkit` imports no torch, pandas or matplotlib
_WHERE = {
    "Ranks": "labkit.ranks",
    "RankError": "labkit.ranks",
    "PerRank": "labkit.per_rank",
    "Report": "labkit.report",
    "predict": "labkit.study",
}

# the lessons' code is the program's own, wherever it is installed
for _name in ("labkit", "course", "ledger"):
    places.own(os.path.join(os.path.dirname(os.path.dirname(__file__)), _name))

_PARTS = (
    "hardware",
    "lessons",
    "ranks",
    "report",
    "study",
    "timing",
    "views",
)

__all__ = [
    "PerRank",
    "RankError",
    "Ranks",
    "Report",
    "predict",
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

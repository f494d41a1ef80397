"""Starting, feeding, watching and ending ranks from a notebook kernel."""

from __future__ import annotations

from labkit.ranks.errors import Outcome, RankError
from labkit.ranks.group import Ranks, current
from labkit.ranks.process import StartError
from labkit.ranks.worker import Here, here

__all__ = ["Here", "Outcome", "RankError", "Ranks", "StartError", "current", "here"]

"""Rank processes that a notebook kernel starts, gives calls to, watches and ends."""

from __future__ import annotations

from labkit.ranks.errors import Outcome, RankError
from labkit.ranks.group import Ranks, current
from labkit.ranks.process import StartError
from labkit.ranks.worker import Here, declare, failing, here

__all__ = ["Here", "Outcome", "RankError", "Ranks", "StartError", "current", "declare", "failing", "here"]

"""Rank processes that a notebook kernel starts, gives calls to, watches and ends."""

from __future__ import annotations

import os

from oddrank.live.failure import Outcome, RankError
from oddrank.live.here import Here, here
from oddrank.live.stacks import own_library

from labkit.ranks.group import Ranks, current
from labkit.ranks.process import StartError

__all__ = ["Here", "Outcome", "RankError", "Ranks", "StartError", "current", "here"]

own_library(os.path.dirname(os.path.dirname(__file__)))

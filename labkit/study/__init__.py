"""Tools of the lessons: predictions and their score, benches to try things on, and checks of the reader's code."""

from __future__ import annotations

from labkit.study.bench import Bench
from labkit.study.predictions import predict, reveal, scoreboard

__all__ = ["Bench", "predict", "reveal", "scoreboard"]

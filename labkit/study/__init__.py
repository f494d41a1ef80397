"""Tools of the lessons: predictions before a run and their score, and checks of the reader's code after it."""

from __future__ import annotations

from labkit.study.predictions import predict, reveal, scoreboard

__all__ = ["predict", "reveal", "scoreboard"]

"""What a lesson needs: predictions before a run, and checks of the reader's own code after it."""

from __future__ import annotations

from labkit.study.exercises import check
from labkit.study.predictions import predict, reveal

__all__ = ["check", "predict", "reveal"]

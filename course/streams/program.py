"""The program of lesson 06, run from the cells of its notebook: functions with streams and events, and microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit import lessons

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the cells define."""


lessons.load("06_streams_and_events", globals())

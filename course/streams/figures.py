"""Saved reports of lesson 06 as pictures: times of every round on GPUs, else simulated timelines."""

from __future__ import annotations

from typing import Any

from course.shared.streams.timeline import SPANS, Timeline
from course.shared.streams_figures import timeline
from labkit.views.compare import timings
from labkit.views.style import Figure
from labkit.views.tables import table_of

__all__ = ["figure"]


def figure(report: Any) -> Figure:
    """Draw a saved report `streams` or `microbatch` that names this view.

    Raises:
        ValueError: the report has neither samples nor spans.
    """
    samples, spans = table_of(report, "samples"), table_of(report, "spans")
    if samples is not None:
        return timings(samples, report.title, report.label, per="step")
    if spans is None:
        raise ValueError("this report has neither a table 'samples' nor a table 'spans'")
    ways = {name: rows[list(SPANS)] for name, rows in spans.groupby("way", sort=False)}
    runs = {name: Timeline(name, report.label, "units", rows) for name, rows in ways.items()}
    return timeline(runs, title=report.title)

"""DTensor against explicit collectives, drawn: the time of a forward by route, kind of layer and size."""

from __future__ import annotations

from typing import Any

from labkit.views.compare import timings
from labkit.views.style import Figure
from labkit.views.tables import table

__all__ = ["figure"]


def figure(report: Any) -> Figure:
    """Draw the times of a saved report of the routes, a panel for each evidence, kind and size.

    Raises:
        ValueError: the report lacks the samples.
    """
    samples = table(report, "samples", ["evidence", "kind", "size", "way", "rank", "round", "seconds"])
    panel = samples["evidence"] + ", " + samples["kind"] + " " + samples["size"]
    return timings(samples.assign(evidence=panel).rename(columns={"way": "variant"}), label=report.label)

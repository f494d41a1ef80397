"""Draws records and reports: the fragment strip, comparisons of variants, graphs, explorers. Never imports torch."""

from __future__ import annotations

from labkit.views.compare import ratios, timings
from labkit.views.explorer import explorer, explorer_static
from labkit.views.graph import graph, graph_text
from labkit.views.machines import machines
from labkit.views.shares import breakdown
from labkit.views.source import beside_source
from labkit.views.stages import stages, stages_static
from labkit.views.strip import strip, strip_text, strips
from labkit.views.style import label_figure
from labkit.views.triage import triage

__all__ = [
    "beside_source",
    "breakdown",
    "explorer",
    "explorer_static",
    "graph",
    "graph_text",
    "label_figure",
    "machines",
    "ratios",
    "stages",
    "stages_static",
    "strip",
    "strip_text",
    "strips",
    "timings",
    "triage",
]

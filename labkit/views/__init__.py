"""Figures that any report or record can use: fragment strips, comparisons of variants, graphs. Never imports torch."""

from __future__ import annotations

from labkit.views.compare import ratios, timings
from labkit.views.graph import graph
from labkit.views.stages import stages, stages_static
from labkit.views.strip import strip, strip_text, strips
from labkit.views.style import label_figure

__all__ = [
    "graph",
    "label_figure",
    "ratios",
    "stages",
    "stages_static",
    "strip",
    "strip_text",
    "strips",
    "timings",
]

"""Draws records and reports: the fragment strip, comparisons of variants, graphs, explorers. Never imports torch."""

from __future__ import annotations

from labkit.lessons.functional.figures import gradients
from labkit.views.compare import ratios, timings
from labkit.lessons.streams.condition_figures import calculator
from labkit.lessons.symmetry.figures import first_difference
from labkit.views.explorer import explorer, explorer_static
from labkit.views.graph import graph, graph_text
from labkit.views.machines import machines
from labkit.lessons.shared.grid_figures import mesh_explorer, mesh_grid
from labkit.lessons.compiled_streams.offload_figures import offload, offload_table
from labkit.lessons.shared.redraw import redraw
from labkit.lessons.scale.explorer import scale_explorer
from labkit.views.shares import breakdown
from labkit.views.source import beside_source
from labkit.views.stages import stages, stages_static
from labkit.lessons.shared.streams_figures import timeline, timeline_text
from labkit.views.strip import strip, strip_text, strips
from labkit.views.style import label_figure
from labkit.views.triage import triage

__all__ = [
    "beside_source",
    "breakdown",
    "calculator",
    "explorer",
    "explorer_static",
    "first_difference",
    "gradients",
    "graph",
    "graph_text",
    "label_figure",
    "machines",
    "mesh_explorer",
    "mesh_grid",
    "ratios",
    "offload",
    "offload_table",
    "redraw",
    "scale_explorer",
    "stages",
    "stages_static",
    "strip",
    "strip_text",
    "strips",
    "timeline",
    "timeline_text",
    "timings",
    "triage",
]

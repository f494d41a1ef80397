"""Figures that any report or record can use: fragment strips and times of variants. Never imports torch."""

from __future__ import annotations

from labkit.views.compare import timings
from labkit.views.strip import strip, strip_text, strips
from labkit.views.style import label_figure

__all__ = [
    "label_figure",
    "strip",
    "strip_text",
    "strips",
    "timings",
]

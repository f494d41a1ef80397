"""Figures that any report or record can use: the fragment strip, and the sheet to draw on. Never imports torch."""

from __future__ import annotations

from labkit.views.strip import strip

__all__ = ["strip"]

"""The exercises of the lesson on worlds beyond this machine."""

from __future__ import annotations

from course.scale.exercises.one_compiles import one_compiles
from course.scale.exercises.places import GRAPHS, places

__all__ = ["GRAPHS", "one_compiles", "places"]

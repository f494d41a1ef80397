"""The suite that a reader copies, `data/delivered/break_it.py`, as a module that ranks find by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import course.shared.contract  # noqa: F401  # the suite imports it
from course.shared.delivered import load

load(__name__, "data/delivered/break_it.py")

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

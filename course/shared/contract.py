"""The contract that a reader copies, `data/delivered/contract.py`, as a module that ranks find by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course.shared.delivered import load

load(__name__, "data/delivered/contract.py")

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

"""What keeps compiled distributed code and its eager path as they were meant: tests that a project can copy."""

from __future__ import annotations

from labkit.contract.eager import assert_in_place, dispatched

__all__ = ["assert_in_place", "dispatched"]

"""The records that figures are drawn from."""

from hand_made import broken, dense, diverged, step, whole, with_transfers  # noqa: F401

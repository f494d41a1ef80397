"""The records that the strip is taken from."""

from hand_made import broken, diverged, step, whole, with_transfers  # noqa: F401

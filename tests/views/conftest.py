"""The records that figures are drawn from."""

from hand_made import broken, dense, dense_whole, diverged, step, whole, with_events  # noqa: F401

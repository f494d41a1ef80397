"""The exceptions of collectives over shared memory, one for each cause."""

from __future__ import annotations


class ShmError(RuntimeError):
    """A collective over shared memory failed. The group cannot be used after it: make a new one."""


class Mismatch(ShmError):
    """Ranks met in different calls: another operation, dtype, size, reduction or root. Every rank raises it."""


class Deadline(ShmError):
    """A peer did not arrive within the group's timeout."""


class PeerGone(ShmError):
    """The process of a peer has ended."""


class PeerLeft(ShmError):
    """A peer is alive but raised inside a collective, or closed its group."""

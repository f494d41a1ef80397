"""What sizes the model of lesson 04 can have; an experiment asks before any rank is started."""

from __future__ import annotations

from typing import Any

__all__ = ["check_size", "check_split"]

MOST = {"dim": 65_536, "heads": 65_536, "blocks": 1000, "mlp_ratio": 64, "tokens": 65_536}


def check_size(config: Any) -> None:
    """Check the sizes of a `Config` of lesson 04.

    Raises:
        ValueError: a size is no whole number, is out of range, or the heads do not divide `dim`.

    >>> from labkit import lessons
    >>> check_size(lessons.program("cliff").Config(dim=64, heads=3))
    Traceback (most recent call last):
    ValueError: heads must divide dim: dim=64, heads=3
    """
    for name, most in MOST.items():
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"{name} must be a whole number from 1 to {most}, got {value!r}")
    if config.dim % config.heads:
        raise ValueError(f"heads must divide dim: dim={config.dim}, heads={config.heads}")


def check_split(config: Any, world_size: int) -> None:
    """Check the sizes, and that the heads split evenly over `world_size` ranks.

    Raises:
        ValueError: as `check_size` does, or the heads do not split evenly.
    """
    check_size(config)
    if world_size < 1 or config.heads % world_size:
        raise ValueError(f"heads={config.heads} cannot be split evenly over world_size={world_size}")

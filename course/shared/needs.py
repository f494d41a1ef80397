"""What some programs need of the ranks that they get."""

from __future__ import annotations

from typing import Any

__all__ = ["on_cpu"]


def on_cpu(ranks: Any) -> None:
    """Check that the ranks are on the CPU, for experiments whose programs make their tensors there.

    Raises:
        ValueError: they are not.

    >>> from types import SimpleNamespace
    >>> on_cpu(SimpleNamespace(device="cuda", world_size=2))
    Traceback (most recent call last):
        ...
    ValueError: this experiment's programs are written for the CPU, and these ranks are on cuda: ... device='cpu')
    """
    if ranks.device != "cpu":
        raise ValueError(
            f"this experiment's programs are written for the CPU, and these ranks are on {ranks.device}:"
            f" give it Ranks({ranks.world_size}, device='cpu')"
        )

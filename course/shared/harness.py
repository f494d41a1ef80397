"""What a rank runs: a reader's function with code of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.shared.variants import own

__all__ = ["own_reduce"]


def own_reduce(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A reader's plain function gets code of its own, as the model's modules do; a wrapped one stays as it is."""
    return reduce if hasattr(reduce, "_torchdynamo_disable") else own(reduce)

"""What checks of exercises about compiled streams share: a child process for the attempt, and a stub that is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.shared.streams.shipped import SINCE
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Mistake, on_ranks

__all__ = ["in_its_own_child", "written"]

TIMEOUT_S = 60.0  # of a child: its work takes two seconds


def in_its_own_child(look: Callable[..., Any], *given: Any, hint: str = "") -> Any:
    """What `look` returns in a child process of its own, which is ended whatever happens.

    Raises Mistake where this torch compiles no streams, and what `on_ranks` raises.
    """
    if not torch_compat.has_stream_graphs():
        raise Mistake(
            f"this torch compiles no streams, so nothing can be checked: it takes torch {SINCE} or later"
        )
    with Ranks(1, "cpu", "gloo", quiet=True) as child:
        return on_ranks(child, look, *given, hint=hint, timeout=TIMEOUT_S)[0]


def written(attempt: Attempt) -> None:
    """Raise Mistake for a stub, before a child is started for it."""
    if "NotImplementedError" in getattr(getattr(attempt, "__code__", None), "co_names", ()):
        raise Mistake("there is nothing to check yet: write the body of the function first")

"""What `oddrank look` shows of a script, shown of a function on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from oddrank.look.look import nothing, together
from oddrank.look.program import watch
from oddrank.look.steps import Options
from oddrank.look.summary import Told

__all__ = ["Ranks", "look"]


class Ranks(Protocol):
    """Processes that call a function each, such as `labkit.Ranks`."""

    def run(self, fn: Callable[..., Any], *args: Any) -> Mapping[int, Any]:
        """Call a function on every rank; its results by rank."""


def look(
    ranks: Ranks,
    fn: Callable[..., Any],
    *args: Any,
    skip: int = 2,
    steps: int = 3,
    step: str = "",
    **kwargs: Any,
) -> Told:
    """Call a function on ranks and record some of its steps, as `oddrank look` does for a script.

    Steps are found as in a script: by calls of compiled callables and of `optimizer.step`. What the function calls has
    to be compiled inside it.

    Args:
        ranks: The ranks.
        fn: The function: a training loop, or a loop of forwards.
        *args: Its positional arguments.
        skip: Steps before the first recorded one.
        steps: Steps to record.
        step: The function whose calls are the steps, where they are not found as above: `fn`'s own name, or that of a
            function or `Class.method` that `fn` uses.
        **kwargs: Its keyword arguments.

    Returns:
        The records of all ranks: `oddrank.look.gate` compares them; `report()` has tables.

    Raises:
        ValueError: If no step was found.
        RankError: As `Ranks.run` does.
    """
    options = Options(skip, steps, step)
    found = together(list(ranks.run(watch, fn, args, kwargs, options).values()))
    if not found.steps:
        raise ValueError(nothing(found, options))
    return Told(**vars(found))

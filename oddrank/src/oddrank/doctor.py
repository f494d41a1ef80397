"""What this environment has, and what `oddrank` can record in it."""

from __future__ import annotations

from importlib.util import find_spec

from oddrank import __version__, machine, tlparse

__all__ = ["examine"]

LOOK = "pip install 'oddrank[look]'"


def examine() -> list[tuple[str, str]]:
    """Describe this environment.

    Returns:
        Pairs of a keyword and its text. Without torch there are those that need none.

    >>> dict(examine())["oddrank"] == __version__
    True
    """
    rows = [("oddrank", __version__)]
    try:
        facts = machine.describe()
    except ValueError:  # no torch
        return [*rows, ("look", "no: torch is not installed"), ("read", "traces and what a dead job left")]
    rows += [
        (key, ", ".join(value) if isinstance(value, list) else str(value)) for key, value in facts.items()
    ]
    lacks = [name for name in ("pandas",) if find_spec(name) is None]
    rows.append(("look", f"no: {', '.join(lacks)} is not installed: {LOOK}" if lacks else "yes"))
    rows.append(
        ("tlparse", "yes" if tlparse.tool() else "not installed: a page of look has no link to its report")
    )
    from oddrank import torch_names
    from oddrank.torch_names.wanted import private_names

    if said := torch_names.untried(facts["torch"]):
        rows.append(("tried", said))
    for name in private_names():
        if not name.there and (name.in_range or not name.optional):
            versions = torch_names.span(name.since, name.until)
            rows.append(("lacking", f"{name} (torch {versions}); lost: {name.does}"))
    return rows

"""What belongs to the lessons: a package for each topic, and `shared` for what several topics use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from labkit import registry

__all__ = ["program"]


def program(topic: str) -> Any:
    """Import the program of a lesson: a module made of the cells of its notebook that are tagged `program`.

    The notebook is the one place where this code stands. Tracebacks and break tables name its cells, such as
    `04_graph_break_cliff [3]:12 (RMSNorm.forward)`: the third code cell, its line 12.

    Args:
        topic: the name of a topic, such as 'cliff'.

    Returns:
        The module. It is imported once in a process, and its functions and classes travel to ranks by name.

    Raises:
        ValueError: there is no such topic, its lesson has no program, or a cell of the program cannot be run.

    >>> cliff = program("cliff")
    >>> cliff.Model(cliff.Config(blocks=2))(cliff.Config().sample()).shape
    torch.Size([1, 4, 64])
    """
    if topic not in registry.TOPICS:
        raise ValueError(f"unknown topic {topic!r}: there is {', '.join(registry.TOPICS)}")
    name = f"labkit.lessons.{topic}.program"
    module = importlib.import_module(name) if importlib.util.find_spec(name) else None
    if not hasattr(module, "__program__"):
        raise ValueError(f"topic {topic!r} has no program made of the cells of its lesson")
    return module

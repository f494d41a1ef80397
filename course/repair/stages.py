"""The programs of lesson 18 with some of their faults fixed, made from its cells as they were delivered."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any

from course.repair import program
from course.shared.options import chosen
from labkit.lessons import execute

__all__ = ["build", "faults", "sources"]

SOLUTION = "FIXES = {"  # it stands in the cells that hold the fixes, and in no other


def faults() -> list[str]:
    """List the faults of the service, in the order of the lesson's repair.

    >>> faults()[:2]
    ['group', 'timeout']
    """
    return list(program.FIXES)


def sources(fixed: Iterable[str] = ()) -> dict[str, str]:
    """Give the cells of service and training as they are delivered, or after some faults were fixed.

    Args:
        fixed: names of faults, of the service or of the training job.

    Returns:
        The source of each cell by its label.

    Raises:
        ValueError: there is no such fault.

    >>> [sum(text.count("dynamic=False") for text in sources(done).values()) for done in ((), ["shape"])]
    [1, 0]
    """
    fixed, fixes = list(fixed), program.FIXES | program.TRAINING_FIXES  # no name is in both
    found = {label: text for label, text in program.CELLS.items() if SOLUTION not in text}
    for fault in chosen(fixed, list(fixes), "fault") if fixed else ():
        for before, after in fixes[fault]:
            held = [label for label, text in found.items() if before in text]
            assert len(held) == 1 and found[held[0]].count(before) == 1, f"{before!r} has to stand once"
            found[held[0]] = found[held[0]].replace(before, after)
    return {f"{label}{' fixed' * bool(fixed)}": text for label, text in found.items()}


def build(service: Mapping[str, str] | Any) -> Any:
    """Make a service of its cells; one that is made already, such as a reader's, stays as it is.

    Each call gives new code objects, on which Dynamo keeps what it compiled: stages share nothing.
    """
    if not isinstance(service, Mapping):
        return service
    module = types.ModuleType("service")
    execute(service, vars(module))
    return module

"""The topics of the course, and the modules in which their parts stand. Nothing of a topic is imported here."""

from __future__ import annotations

import pkgutil
from pathlib import Path

__all__ = ["DECLARING", "TOPICS", "declaring", "modules"]

# one package of `course` each, in the order of the course
TOPICS = (
    *("start", "groups", "functional", "reading", "cliff", "trap", "streams", "compiled_streams"),
    *("symmetry", "guards", "dtensor", "mesh", "cold", "ddp", "fsdp", "break_it"),
    *("scale", "since", "repair", "new_torch"),
)
# packages with experiments, which their `declared.py` lists, in the order of `labkit list`
DECLARING = (
    *("cliff", "functional", "trap", "streams", "compiled_streams", "symmetry", "guards"),
    *("scale", "mesh", "cold", "dtensor", "ddp", "fsdp", "break_it", "since", "repair"),
)
COURSE = Path(__file__).parents[1] / "course"


def declaring() -> list[str]:
    """List the packages of the course that declare experiments and are here.

    >>> declaring()[0]
    'cliff'
    """
    return [name for name in DECLARING if (COURSE / name / "declared.py").exists()]


def modules(part: str) -> list[str]:
    """List the modules of one part of every topic.

    Args:
        part: the name of a module in a topic's package, or of a package, whose modules are listed then; such as
            `exercises`.

    Returns:
        Dotted names in the order of the course; topics without this part are left out.

    >>> [name for name in modules("exercises") if "functional" in name][0]
    'course.functional.exercises.gather'
    """
    found = []
    for topic in TOPICS:
        name = f"course.{topic}.{part}"
        if (COURSE / topic / f"{part}.py").exists():
            found.append(name)
        found += [f"{name}.{module.name}" for module in pkgutil.iter_modules([str(COURSE / topic / part)])]
    return found

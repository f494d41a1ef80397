"""What only lessons import: a package for each topic, and `shared` for what several topics use.

A topic's package also has a module `program` without a file: it is the cells of the topic's lesson that are tagged
`program`. `labkit.lessons.program("cliff")` imports it, and ranks find its classes by name.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from labkit import lessons, registry


class Programs(MetaPathFinder, Loader):
    """Finds `course.<topic>.program` and runs the cells of the lesson in it; a file of this name goes first."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        first, _, rest = name.partition(".")
        topic, _, last = rest.partition(".")
        if (first, last) != (__name__, "program") or topic not in registry.TOPICS:
            return None
        return spec_from_loader(name, self)

    def exec_module(self, module: ModuleType) -> None:
        lessons.load(registry.lesson(module.__name__.split(".")[1]), vars(module))


sys.meta_path.append(Programs())

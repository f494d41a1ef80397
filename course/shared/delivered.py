"""Files that a reader copies, as modules: by a name of ours, which ranks find, and by their own for each other."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from labkit import files

__all__ = ["load"]


def load(name: str, path: str) -> None:
    """Run a file in the place of the module that asks for it.

    Args:
        name: of that module; what the file defines is pickled by it.
        path: of the file in the project. A second such file imports it by its stem.
    """
    found = Path(files.ours(path))
    spec = spec_from_file_location(name, found)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    module.PATH = found  # type: ignore[attr-defined]
    sys.modules[name] = sys.modules[found.stem] = module
    spec.loader.exec_module(module)

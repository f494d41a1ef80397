"""The suite that a reader copies, `data/delivered/break_it.py`, as a module that ranks find by name."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

from labkit import files

PATH = files.ours("data/delivered/break_it.py")
_spec = spec_from_file_location(__name__, PATH)
assert _spec is not None and _spec.loader is not None
_module = module_from_spec(_spec)
sys.modules[__name__] = _module
_module.PATH = PATH  # type: ignore[attr-defined]
_spec.loader.exec_module(_module)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

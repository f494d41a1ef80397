"""Where the reader's functions live in a rank: in one module a name, as they do in the kernel.

cloudpickle gives the functions of each pickle a globals dictionary of their own. Dynamo, when it inlines such a
function, looks its globals up in `sys.modules[function.__module__]` instead (torch/_dynamo/symbolic_convert.py,
`get_globals_source_and_value`), and so they must be there. Whatever imports such a module by its name finds the
stand-in as well: what did not travel, it takes from the module's own file.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import pickle
import sys
import types
from collections.abc import Sequence
from functools import partial
from importlib.machinery import PathFinder
from typing import Any

import cloudpickle.cloudpickle as by_value

_homes: dict[str, types.ModuleType] = {}
_files: dict[str, types.ModuleType] = {}


def found(name: str) -> types.ModuleType:
    """Make the module that functions of the kernel's `__main__`, or of `%%ranks` cells, live in."""
    module = types.ModuleType(name)
    _homes[name] = sys.modules[name] = module
    return module


def _from_file(name: str, wanted: str) -> Any:
    """What a stand-in lacks, out of the module itself, which is then run once."""
    if wanted.startswith("__") and wanted != "__path__":
        raise AttributeError(wanted)
    if name not in _files:
        parent, _, _ = name.rpartition(".")
        # a module of a package is looked for where the package is, which this rank may not have imported yet
        spec = PathFinder.find_spec(name, importlib.import_module(parent).__path__ if parent else None)
        if spec is None or spec.loader is None:
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        _files[name] = importlib.util.module_from_spec(spec)  # there while it runs: it may import itself
        try:
            spec.loader.exec_module(_files[name])
        except BaseException:
            del _files[name]
            raise
    return getattr(_files[name], wanted)


def _home_of(name: str | None) -> types.ModuleType | None:
    """The stand-in for a module that travels by value; None where the rank has imported the real one."""
    if not name:
        return None
    if name not in _homes and name not in sys.modules:
        found(name).__getattr__ = partial(_from_file, name)  # type: ignore[method-assign]
    return _homes.get(name)


class Carried:
    """A pickle that was loaded: its value, and the globals that its functions brought along.

    `use()` puts these in place again, since another pickle may have brought the same names with other values.
    """

    def __init__(self, data: Any, buffers: Sequence[Any] = ()):
        self._brought: list[tuple[types.ModuleType, dict[str, Any]]] = []
        unpickler = _Unpickler(io.BytesIO(data), buffers=buffers)
        unpickler.brought = self._brought
        self.value = unpickler.load()

    def use(self) -> Any:
        for module, names in self._brought:
            vars(module).update(names)
        return self.value


class _Unpickler(pickle.Unpickler):
    brought: list[tuple[types.ModuleType, dict[str, Any]]]

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "cloudpickle":
            if name == "_make_function":
                return self._make
            if name == "_function_setstate":
                return self._set_state
        return super().find_class(module, name)

    @staticmethod
    def _make(code: Any, names: dict[str, Any], *rest: Any) -> Any:
        home = _home_of(names.get("__name__"))
        if home is None:
            return by_value._make_function(code, names, *rest)
        for key, value in names.items():
            vars(home).setdefault(key, value)
        return by_value._make_function(code, vars(home), *rest)

    def _set_state(self, function: Any, state: tuple[dict, dict]) -> None:
        home = _homes.get(str(state[1].get("__module__")))
        if home is not None and function.__globals__ is vars(home):
            self.brought.append((home, dict(state[1]["__globals__"])))
        by_value._function_setstate(function, state)

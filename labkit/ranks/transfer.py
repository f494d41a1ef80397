"""How functions and their arguments travel: pickled and checked in the kernel, unpickled into modules in a rank.

In a rank, the functions of one module share one module, as they do in the kernel. cloudpickle gives the functions of
each pickle a globals dictionary of their own. But Dynamo, when it inlines such a function, looks its globals up in
`sys.modules[function.__module__]` (torch/_dynamo/symbolic_convert.py, `get_globals_source_and_value`), so they must be
there. Code that imports such a module by its name finds the stand-in as well, which takes what did not travel from the
module's own file.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import PathFinder
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import cloudpickle.cloudpickle as by_value

from labkit.ranks import wire
from oddrank import places

NOTHING = wire.pack(((), {}))  # the arguments of most calls
_by_value: set[str] = set()  # in the kernel: modules whose functions travel by value
_homes: dict[str, ModuleType] = {}  # in a rank: the stand-ins
_files: dict[str, ModuleType] = {}  # and the modules that were run from their files


def dumps(value: Any, what: str) -> bytes:
    """Pickle a value for the ranks.

    Raises:
        ValueError: If it cannot travel, with the reason.
    """
    stays = "a compiled object stays in its process: call torch.compile inside the function"
    if _compiled(value):  # torch 2.11 would let it go, and call it wrongly there
        raise ValueError(f"{what} cannot travel to the ranks: {stays}")
    try:
        return wire.dumps(value)
    except Exception as error:
        hint = f"; {stays}" if type(value).__name__ == "OptimizedModule" else ""
        used, cause = _culprit(value, set()) or ("", error)
        raise ValueError(f"{what} cannot travel to the ranks: {used}{_reason(cause)}{hint}") from None


def pack_call(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> tuple[bytes, wire.Packed]:
    """Pickle a call for the ranks.

    Raises:
        ValueError: If the function or an argument cannot travel, or `fn` is no function that can be called.
    """
    function = _pickle(fn)
    try:
        return function, wire.pack((args, kwargs)) if args or kwargs else NOTHING
    except Exception:
        for where, value in [
            *((f"argument {i + 1}", v) for i, v in enumerate(args)),
            *((f"argument {k}=", v) for k, v in kwargs.items()),
        ]:
            dumps(value, f"{where} ({type(value).__name__})")
        raise


def _pickle(fn: Callable[..., Any]) -> bytes:
    """Pickle the function of a call."""
    if not callable(fn):
        raise ValueError(f"run() needs a function, got {type(fn).__name__}")
    name = getattr(fn, "__name__", type(fn).__name__)
    if _waits(fn) or not isinstance(fn, FunctionType) and _waits(type(fn).__call__):
        raise ValueError(
            f"run() needs a function that runs when it is called, and {name!r} is an async def: "
            "give one that calls asyncio.run(...)"
        )
    send_by_value(fn)
    return dumps(fn, f"function {name!r}")


def _waits(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)


def _refused(value: Any) -> Exception | None:
    """Why a value does not travel; None where it does."""
    try:
        wire.dumps(value)
    except Exception as error:
        return error
    return None


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _culprit(fn: Any, seen: set[int]) -> tuple[str, Exception] | None:
    """Which variable keeps a function from travelling, in words, and why; None where it is no variable."""
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, FunctionType) or id(fn) in seen:
        return None
    seen.add(id(fn))
    for name, value in _variables(fn).items():
        if error := _refused(value):
            return _culprit(value, seen) or (f"variable {name!r} in {fn.__name__}(): ", error)
    return None


def _variables(fn: FunctionType) -> dict[str, Any]:
    """The variables from outside that a function, and the functions in it, use."""
    names = by_value._extract_code_globals(fn.__code__)
    used = {name: fn.__globals__[name] for name in names if name in fn.__globals__}
    return {**used, **inspect.getclosurevars(fn).nonlocals}


def _compiled(value: Any) -> bool:
    """Whether it is a function of torch.compile's; what `torch.compiler.disable` made looks alike, and travels."""
    return hasattr(value, "_torchdynamo_orig_callable") and not (
        getattr(value, "_torchdynamo_disable", False) or type(value).__name__ == "OptimizedModule"
    )


def send_by_value(fn: Callable[..., Any]) -> None:
    """Make functions of the reader's own modules travel by value, as a notebook's do, so that ranks run edited code."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__ in ("__main__", *_by_value):
        return
    if not places.is_library(file) and module.__name__.partition(".")[0] not in ("labkit", "course"):
        cloudpickle.register_pickle_by_value(module)
        _by_value.add(module.__name__)


def create_module(name: str) -> ModuleType:
    """Create the module, registered in `sys.modules`, that holds functions of the kernel's module of that name."""
    module = ModuleType(name)
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


def _home_of(name: str | None) -> ModuleType | None:
    """The stand-in for a module that travels by value; None where the rank has imported the real one."""
    if not name:
        return None
    if name not in _homes and name not in sys.modules:
        create_module(name).__getattr__ = partial(_from_file, name)  # type: ignore[method-assign]
    return _homes.get(name)


class Unpickled:
    """A pickle that was loaded in a rank: its value, and the globals that its functions brought along."""

    def __init__(self, data: Any, buffers: Sequence[Any] = ()):
        self._brought: list[tuple[ModuleType, dict[str, Any]]] = []
        unpickler = _Unpickler(io.BytesIO(data), buffers=buffers)
        unpickler.brought = self._brought
        self.value = unpickler.load()

    def use(self) -> Any:
        """Return the value, its globals put in place again: another pickle may have brought other values for them."""
        for module, names in self._brought:
            vars(module).update(names)
        return self.value


class _Unpickler(pickle.Unpickler):
    brought: list[tuple[ModuleType, dict[str, Any]]]

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

"""The environment variables of ranks, and which of them are read before a rank has begun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import oddrank

# what C libraries and the interpreter read as they are loaded; what Python code looks up, the zygote notes by itself
AT_LOAD = (
    "TORCH_", "PYTORCH_", "C10_", "ATEN_", "KINETO_", "OMP_", "GOMP_", "KMP_", "MKL_", "MKLDNN_", "ONEDNN_", "DNNL_",
    "OPENBLAS_", "GOTO_", "NPY_", "PYTHON", "MALLOC_", "GLIBC_", "LD_", "LC_", "LANG", "TQDM_",
)  # fmt: skip
# but this one only as the profiler first starts; recording in the kernel sets it
LATER = {"KINETO_LOG_LEVEL"}
_OURS = [str(Path(file).resolve().parents[n]) for file, n in ((__file__, 2), (oddrank.__file__, 1))]


def check(env: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Return the variables that a caller has given for ranks, as a dict.

    Raises:
        ValueError: If one cannot be a variable of a process.

    >>> check({"TORCH_LOGS": "dynamo", "OLD": None})
    {'TORCH_LOGS': 'dynamo', 'OLD': None}
    """
    if env is not None and not isinstance(env, Mapping):
        raise ValueError(f"env is a mapping of variables to their values, got {type(env).__name__}")
    for name, value in (env or {}).items():
        both = (name, "" if value is None else value)
        if not all(isinstance(text, str) and "\0" not in text for text in both) or not name or "=" in name:
            rule = "a name is text without '=', a value is text without a NUL, or None for not set"
            raise ValueError(f"env: {name!r} cannot be {value!r}: {rule}")
    return dict(env or {})


def complete(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with what every rank needs; our packages may be on `sys.path` only, as in a first cell."""
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    return {
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads at import, and a fork loses them
        **environ,
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, [*_OURS, *paths]))),
    }


class Started:
    """The environment that a process was started in.

    Attributes:
        environ: The environment.
        read: The variables that its imports have looked up.
        made: The variables that its imports have set.
    """

    def __init__(self, environ: Mapping[str, str]):
        self.environ = dict(environ)
        self.read: frozenset[str] = frozenset()
        self.made: dict[str, str] = {}

    def late(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables that are too late to change: it has read them, and `environ` has other values for them.

        >>> started = Started({"A": "1", "OMP_NUM_THREADS": "1"})
        >>> started.read = frozenset({"TORCH_LOGS"})
        >>> started.late({"A": "2", "TORCH_LOGS": "dynamo"})
        ['OMP_NUM_THREADS', 'TORCH_LOGS']
        """
        loaded = {name for name in (*environ, *self.environ) if name.startswith(AT_LOAD)} - LATER
        return sorted(name for name in self.read | loaded if not self._same(name, environ.get(name)))

    def _same(self, name: str, value: str | None) -> bool:
        return value == self.environ.get(name) or (value is not None and value == self.made.get(name))

    def overlay(self, environ: Mapping[str, str]) -> dict[str, str | None]:
        """Return what a fork of the process has to set, or with None to unset, in order to run in `environ`."""
        return {**dict.fromkeys(self.environ.keys() - environ.keys()), **environ}

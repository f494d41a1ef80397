"""Interpreters with other versions of torch: of a release, which uv gets, or of an environment that is there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import oddrank
from oddrank import environments, machine

__all__ = ["Torch", "find", "installed"]

NEEDED = ("pandas",)  # what look imports besides torch
OURS = (oddrank,)
_VERSION = re.compile(r"\d+(\.\d+){1,2}")
# what an environment has, without an import of torch: that takes seconds
_PROBE = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
lacks = [name for name in sys.argv[1:] if not version(name)]
print(json.dumps({"torch": version("torch"), "lacks": lacks}))
"""
# bytecode, which stays in uv's cache: otherwise the first step of the first run has the time that it takes
_BYTECODE = """
import compileall, importlib.util, sys
for name in ("torch", "sympy"):
    for folder in importlib.util.find_spec(name).submodule_search_locations:
        compileall.compile_dir(folder, quiet=2, workers=int(sys.argv[1]))
"""
# parts of torch, and what installs packages; oddrank comes along as it is here
_OWN = re.compile(r"torch|triton|pytorch-triton|(nvidia|cuda)[-_].*|labkit|oddrank|pip|setuptools|wheel|uv")
_PINS_TORCH = re.compile(r"torch\s*\(?\s*==")


@dataclass(frozen=True)
class Torch:
    """An interpreter that can import a torch, and this oddrank.

    Attributes:
        asked: What was asked for: a version or a path.
        python: The command that starts it.
        env: The environment variables to start it with.
        version: The version of its torch.
        label: A name that no other one has.
    """

    asked: str
    python: tuple[str, ...]
    env: dict[str, str]
    version: str
    label: str


def find(
    asked: Sequence[str], packages: Sequence[str] = (), requirements: Sequence[Path] = ()
) -> list[Torch]:
    """Find interpreters, in the order in which they were asked for.

    Args:
        asked: A version such as '2.15.0', the folder of an environment, or the path of a python, of each.
        packages: What an environment of a version has besides, as '--with' of uv takes it.
        requirements: Files of requirements, likewise. Without both it has the packages that are installed here.

    Raises:
        ValueError: One is not there, has no torch that oddrank supports, lacks what it needs, or uv cannot make it.
    """
    for path in requirements:
        if not path.is_file():
            raise ValueError(f"--requirements {path}: there is no such file")
    found = [_one(each, packages, requirements) for each in asked]
    labels = [one.version for one in found]
    return [
        replace(one, label=label if labels.count(label) == 1 else f"{label} ({number}: {one.asked})")
        for number, (one, label) in enumerate(zip(found, labels, strict=True), 1)
    ]


def _one(asked: str, packages: Sequence[str], requirements: Sequence[Path]) -> Torch:
    path = Path(asked)
    if not path.exists() and _VERSION.fullmatch(asked):
        more, env = environments.options(NEEDED, OURS)
        own = [f"--with={one}" for one in packages] + [f"--with-requirements={one}" for one in requirements]
        more += own or [f"--with={one}" for one in installed()]
        python = environments.command(environments.numbers(asked), more, env)
        subprocess.run([*python, "-c", _BYTECODE, str(machine.cores())], env=env, capture_output=True)
    elif not path.exists():
        raise ValueError(
            f"--torch {asked}: it is no version such as 2.15.0, and there is no such environment or interpreter"
        )
    else:
        program = next((p for p in (path / "bin/python", path / "Scripts/python.exe") if p.exists()), path)
        if not program.is_file() or not os.access(program, os.X_OK):
            raise ValueError(f"--torch {asked}: there is no interpreter in it (bin/python)")
        python, env = (
            [os.path.abspath(program)],
            environments.variables(OURS),
        )  # not resolved: a link into its environment
    # after ours: the script's own modules; a torch among them shows as another version in the run
    places = [env["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
    env = env | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    try:
        probe = subprocess.run([*python, "-c", _PROBE, *NEEDED], env=env, capture_output=True, text=True)
        told = json.loads(probe.stdout)
    except (OSError, ValueError):
        raise ValueError(f"--torch {asked}: this is no Python that runs") from None
    if not told["torch"]:
        raise ValueError(f"--torch {asked}: it has no torch")
    if told["lacks"]:
        lacks = " ".join(told["lacks"])
        raise ValueError(
            f"--torch {asked}: oddrank look needs {lacks} there: `uv pip install -p {asked} {lacks}`"
        )
    environments.numbers(".".join(re.findall(r"\d+", told["torch"])[:3]))
    return Torch(asked, tuple(python), env, told["torch"], told["torch"])


def installed() -> Iterator[str]:
    """What is installed here without torch, as '--with' takes it; what pins torch's version, without its own version.

    Packages that were installed from a folder are left out.

    >>> any(one.startswith("numpy==") for one in installed()), any(one.startswith("torch==") for one in installed())
    (True, False)
    """
    for one in importlib.metadata.distributions():
        name, url = str(one.metadata["Name"]), one.read_text("direct_url.json") or ""
        if not _OWN.fullmatch(name.lower()) and '"dir_info"' not in url:
            pins = any(_PINS_TORCH.match(need) for need in one.requires or [])
            yield name if pins else f"{name}=={one.version}"

"""Another torch for a process of its own, by `uv run`, which gets it and keeps it in uv's cache."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from oddrank import packages, torch_names

__all__ = ["SAID", "command", "numbers", "options", "variables"]

SAID = 400  # characters of uv's own words in an error


def numbers(version: str) -> str:
    """A torch version in full, as '2.15.0'.

    Raises:
        ValueError: it is no release, or none that oddrank supports.

    >>> numbers("2.15")
    '2.15.0'
    """
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise ValueError(f"a torch version is a release such as 2.15.0, got {version!r}")
    whole = version if version.count(".") == 2 else f"{version}.0"
    low, high = torch_names.TRIED
    series = [[int(number) for number in one.split(".")[:2]] for one in (low, whole, high)]
    if series != sorted(series):
        known = "TRIED in oddrank/src/oddrank/torch_names/names.py"
        raise ValueError(f"oddrank supports torch {low} to {high}, not {whole}: {known}")
    return whole


def options(
    packages_needed: Sequence[str], modules: Sequence[ModuleType]
) -> tuple[list[str], dict[str, str]]:
    """What `uv run --isolated --no-project --with torch==VERSION` takes so that torch is all that differs.

    Args:
        packages_needed: names of packages that our modules import, without torch.
        modules: our packages that have to be found there.

    Returns:
        uv's options: this interpreter, where pip is configured to look, and the packages, as installed here;
        the environment variables, by which uv is found, and our packages, and no package else.

    >>> "--with=pip==" in " ".join(options(["pip"], [])[0])
    True
    """
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    places = packages.configured(listing.stdout)
    for name in ("constraint", "no-binary", "only-binary"):
        places.pop(name, None)  # a constraint may bar that torch; and wheels are all that is taken
    more, known = packages.as_uv(places)
    more += [f"--with={name}=={importlib.metadata.version(name)}" for name in packages_needed]
    known["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return ["--python", sys.executable, "--no-build", *more], variables(modules) | known


def variables(modules: Sequence[ModuleType]) -> dict[str, str]:
    """Environment variables by which another interpreter finds our packages, and no package else.

    Args:
        modules: the packages.
    """
    roots: dict[Path, list[str]] = {}
    for module in modules:
        roots.setdefault(Path(module.__file__ or "").parents[1], []).append(module.__name__)
    places = (
        _alone(root, tuple(names)).name if (root / "torch").exists() else str(root)
        for root, names in roots.items()
    )
    # without bytecode in uv's cache every start and every rank would compile torch anew
    left_out = re.compile(r"UV_(?!(CACHE_DIR|OFFLINE)$)|PYTHONDONTWRITEBYTECODE$|PYTHONHOME$|VIRTUAL_ENV$")
    kept = {name: value for name, value in os.environ.items() if not left_out.match(name)}
    return kept | {"PYTHONPATH": os.pathsep.join(places)}


def command(version: str, more: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The command of an interpreter with another torch, which is installed now.

    Args:
        version: of torch.
        more: uv's options.
        env: the environment variables.

    Raises:
        ValueError: uv is not there, or it cannot install; the message has uv's own words.
    """
    python = ["uv", "run", "--isolated", "--no-project", "--with", f"torch=={version}", *more, "python"]
    if not shutil.which("uv", path=env["PATH"]):
        raise ValueError("another torch takes uv, and there is none here: `python -m pip install uv` gets it")
    made = subprocess.run([*python, "-c", ""], env=env, capture_output=True, text=True)
    if made.returncode:
        said = " ".join(made.stderr.split())[:SAID]
        raise ValueError(f"uv cannot get torch {version} from where pip is configured to look: {said}")
    return python


@functools.cache  # the folder is there until this process ends
def _alone(installed: Path, names: tuple[str, ...]) -> tempfile.TemporaryDirectory[str]:
    """A folder where our packages are found, and nothing that is installed beside them, such as this torch."""
    folder = tempfile.TemporaryDirectory(prefix="oddrank-")
    for name in names:
        (Path(folder.name) / name).symlink_to(installed / name)
    return folder

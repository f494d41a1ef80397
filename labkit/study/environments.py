"""An environment with another torch, made by uv in the user's cache folder, and the ledger run in it.

It holds that torch, and what else labkit needs in the versions that are installed here: so torch is all that differs.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from labkit import files, packages, torch_compat

__all__ = ["folder", "make", "numbers", "remove", "run", "variables"]

WHOLE = "whole"  # the file that is written last: an environment without it was broken off
SAID = 400  # characters of uv's own words in an error


def numbers(version: str) -> str:
    """A torch version in full, as '2.15.0'.

    Raises:
        ValueError: it is no release, or none that labkit supports.

    >>> numbers("2.15")
    '2.15.0'
    """
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise ValueError(f"a torch version is a release such as 2.15.0, got {version!r}")
    whole = version if version.count(".") == 2 else f"{version}.0"
    low, high = torch_compat.SUPPORTED
    try:
        torch_compat.check_version(whole)
    except torch_compat.UnsupportedTorch:
        raise ValueError(
            f"labkit supports torch {low} to {high}, not {whole}: SUPPORTED in labkit/torch_compat/versions.py"
        ) from None
    return whole


def folder(version: str) -> Path:
    """The folder of the environment with this torch; it need not exist.

    >>> folder("2.15.0").name.startswith("torch-2.15.0-python3.")
    True
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    caches = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    root = Path(named) if os.path.isabs(named) else caches
    return root / "labkit" / f"torch-{numbers(version)}-python{sys.version_info[0]}.{sys.version_info[1]}"


def make(version: str, talk: Callable[[str], object] | None = None) -> Path:
    """Make the environment with this torch, or find the one that was made before.

    Args:
        version: of torch.
        talk: called with a line before something that takes time.

    Returns:
        The path of its interpreter.

    Raises:
        ValueError: the version is no release that labkit supports, uv is not there, or it cannot install; the message
            has uv's own words. Nothing half made is left.
    """
    version, there = numbers(version), folder(version)
    python, needed = there / "bin" / "python", _needed()
    with _alone(there):
        wanted = "\n".join([f"torch=={version}", *needed])
        if (there / WHOLE).exists() and (there / WHOLE).read_text() == wanted and python.exists():
            return python
        uv = _uv()
        if talk:
            talk(f"making an environment with torch {version} in {there}: about a minute the first time")
        try:
            _call([*uv, "venv", "--no-config", "--quiet", "--clear", "--python", sys.executable, str(there)])
            options, env = packages.as_uv(_pip())
            install = [*uv, "pip", "install", "--quiet", "--python", str(python), *options]
            _call([*install, *wanted.split()], env, f"torch {version}")
            found = _call([str(python), "-c", "import torch; print(torch.__version__)"]).strip()
            if found.partition("+")[0] != version:
                raise ValueError(f"torch {version} was asked for, and {found} is what was installed")
            files.replace(there / WHOLE, wanted.encode())
        except BaseException:
            shutil.rmtree(there, ignore_errors=True)
            raise
    return python


def remove(version: str) -> Path | None:
    """Remove the environment with this torch.

    Returns:
        Its folder, or None where there was none.

    Raises:
        ValueError: the version is no release that labkit supports.
    """
    there = folder(version)
    if not there.exists():
        return None
    with _alone(there):
        shutil.rmtree(there)
    return there


def variables() -> dict[str, str]:
    """The environment variables with which another interpreter finds this labkit and this ledger, and no package else.

    >>> "PYTHONPATH" in variables()
    True
    """
    root = Path(__file__).parents[2]
    if (
        root / "torch"
    ).exists():  # labkit is installed beside the torch of this environment, which must not be found
        beside = folder(torch_compat.SUPPORTED[1]).parent / f"labkit-{os.getuid()}"
        beside.mkdir(parents=True, exist_ok=True)
        for name in ("labkit", "course", "ledger"):
            link = beside / name
            with contextlib.suppress(FileExistsError):
                link.symlink_to(root / name)
            if link.resolve() != root / name:
                link.unlink()
                link.symlink_to(root / name)
        root = beside
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")])),
    }


def run(
    version: str, arguments: Sequence[str], into: Path, talk: Callable[[str], object] | None = None
) -> int:
    """Run `labkit ledger` with this torch, and keep its results.

    Args:
        version: of torch.
        arguments: further arguments of `labkit ledger`.
        into: folder of the results.
        talk: see `make`.

    Returns:
        The exit status.

    Raises:
        ValueError: as for `make`.
    """
    python = make(version, talk)
    command = [str(python), "-m", "labkit", "ledger", *arguments, "--save", str(into)]
    process = subprocess.Popen(command, env=variables())
    try:
        return process.wait()
    except KeyboardInterrupt:  # it got the signal as well, and ends its ranks
        process.wait(30)
        raise
    finally:
        process.kill()


def _needed() -> list[str]:
    """What labkit needs beside torch, in the versions that are installed here."""
    needs = importlib.metadata.requires("labkit") or []
    names = [re.match(r"[\w.-]+", need)[0] for need in needs if "extra ==" not in need]  # type: ignore[index]
    return [f"{name}=={importlib.metadata.version(name)}" for name in names if name != "torch"]


def _uv() -> list[str]:
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    if program := shutil.which("uv"):
        return [program]
    raise ValueError("another torch takes uv, and there is none here: `python -m pip install uv` installs it")


def _pip() -> dict[str, str]:
    """What pip is configured to do. A constraint is left out: it may bar the very version that is asked for."""
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    settings = packages.configured(listing.stdout)
    return {name: value for name, value in settings.items() if name != "constraint"}


def _call(command: list[str], env: dict[str, str] | None = None, what: str = "") -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("UV_") or k == "UV_CACHE_DIR"}
    done = subprocess.run(command, env={**kept, **(env or {})}, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout
    said = " ".join((done.stderr or done.stdout).split())
    why = "cannot be installed" if what else f"{Path(command[0]).name} failed"
    if re.search(r"no version of torch\b|no versions of torch\b", said):
        why = "is in none of the places that pip is configured to look in"
    elif re.search(r"dns error|connect|timed out|network|request", said, re.IGNORECASE):
        why = "cannot be installed: the package index is not reached"
    raise ValueError(f"{what} {why}; uv says: {said[:SAID]}".strip())


@contextlib.contextmanager
def _alone(there: Path) -> Iterator[None]:
    """Let one process at a time make or remove an environment."""
    there.parent.mkdir(parents=True, exist_ok=True)
    with open(there.parent / f".{there.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

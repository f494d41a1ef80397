"""The hardware and software of this machine: cores, GPUs, torch, and a description for provenance."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["VISIBLE", "cores", "describe", "gpus", "name", "no_gpu", "slug", "torch_version"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """The names of the NVIDIA GPUs that torch can use here, as `nvidia-smi` lists them; no CUDA context is made.

    `CUDA_VISIBLE_DEVICES` is respected. A machine without a driver has none, and neither has a torch built for the CPU.
    """
    return [] if _for_cpu() else _visible(_listed())


def _for_cpu() -> bool:
    try:
        return torch_version().endswith("+cpu")
    except ValueError:
        return False


@functools.cache
def _listed() -> list[list[str]]:
    """Index, UUID and name of every GPU."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in listing.splitlines() if line.strip()]


def no_gpu() -> str:
    """Why there is no GPU."""
    return "no GPU for a torch built for the CPU" if _for_cpu() and _listed() else "no GPU here"


def _visible(rows: list[list[str]]) -> list[str]:
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return [row[2] for row in rows]
    chosen: list[str] = []
    for wanted in filter(None, (item.strip() for item in visible.split(","))):
        if rows and wanted.startswith("MIG-"):  # a part, which nvidia-smi lists elsewhere; CUDA takes one
            return chosen or [f"{rows[0][2]}, a MIG part"]
        match = [row[2] for row in rows if wanted == row[0] or row[1].startswith(wanted)]
        if not match:  # CUDA stops at the first entry it does not know
            break
        chosen.append(match[0])
    return chosen


@functools.cache
def torch_version() -> str:
    """The version of the installed torch, without importing it.

    Raises:
        ValueError: torch is not installed.
    """
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError("torch is not installed in this environment: `make lab` installs it") from None


def name() -> str:
    """This machine in a few words: its GPUs, or else its number of cores."""
    names = gpus()
    return f"{len(names)}x {names[0]}" if names else f"{cores()}-core CPU"


def slug() -> str:
    """The name of the machine as it begins the name of a folder of recordings.

    >>> slug() == slug().lower()
    True
    """
    return re.sub(r"[^a-z0-9]+", "-", name().lower()).strip("-")


def describe() -> dict[str, Any]:
    """The hardware and software of this machine, as provenance stores it."""
    names = gpus()
    return {
        "hardware": name(),
        "cpu": _cpu_name(),
        "gpus": names,
        "driver": _driver() if names else "",
        "cores": cores(),
        "platform": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "python": platform.python_version(),
        "torch": torch_version(),
        "commit": _commit(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


@functools.cache
def _commit() -> str:
    """The commit of the checkout that this comes from, with '+changes' when the tree is not clean; '' without one."""
    here = Path(__file__).resolve().parents[3]
    if not (here / "oddrank" / "pyproject.toml").is_file():  # installed, perhaps within another repository
        return ""
    try:
        run = functools.partial(
            subprocess.run, cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        commit = run(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
        changed = run(
            [
                "git",
                "status",
                "--porcelain",
                "--untracked-files=no",
                "--",
                "oddrank",
                "labkit",
                "course",
                "ledger",
            ]
        ).stdout.strip()
        return commit + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""

"""Installs the locked packages, oddrank and labkit into the environment that runs this file, with uv, or else with pip.

    .venv/bin/python tools/install.py [--torch-index URL] [--again]

uv installs the same packages several times as fast as pip, and links them from a cache the second time. It knows
nothing of pip's configuration, so that is read from `pip config list` and handed over: indexes, folders of wheels and
constraints. No other place is asked for a package. Only the standard library is imported: nothing else is there yet.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "oddrank" / "src")]  # they are not installed yet
from oddrank.packages import as_uv, configured  # noqa: E402

__all__ = ["commands", "main"]

UV = "uv==0.13.9"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def commands(torch: str, torch_index: str, again: bool, uv: Sequence[str] = ()) -> list[list[str]]:
    """The command lines of an installation, in order; `uv` are uv's options, none: with pip.

    Args:
        torch: the locked torch, such as 'torch==2.13.0'.
        torch_index: the address of the index that torch comes from; '': from where everything else does.
        again: whether torch is installed anew, though the locked version is there: it may be another build.
    """
    program = (
        [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
        if uv
        else [*PIP, "install"]
    )
    made = []
    if torch_index or again:  # another build of the locked torch would count as installed
        one = [*program, *uv, "--no-deps", torch]
        if torch_index and "--default-index" in one:  # uv takes it once, where pip takes the last
            one[one.index("--default-index") + 1] = torch_index
        elif torch_index:
            one += ["--default-index" if uv else "--index-url", torch_index]
        if again:
            one += ["--reinstall-package", "torch"] if uv else ["--force-reinstall"]
        made.append(one)
    more = (["--index", torch_index] if uv else ["--extra-index-url", torch_index]) if torch_index else []
    made.append([*program, *uv, *more, "-r", str(ROOT / "requirements.lock")])
    made.append(
        [*program, *uv, "--no-deps", "--no-build-isolation", "-e", str(ROOT / "oddrank"), "-e", str(ROOT)]
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status of the first command that failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--torch-index", default="", metavar="URL", help="the package index that torch comes from"
    )
    parser.add_argument("--again", action="store_true", help="install torch anew")
    chosen = parser.parse_args(arguments)
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    (torch,) = re.findall(r"^torch==\S+", locked, re.MULTILINE)
    asked = (torch, chosen.torch_index, chosen.again)
    if _run([*PIP, "install", "--quiet", "--no-deps", UV]) == 0:
        listing = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
        options, env = as_uv(configured(listing))
        if all(_run(command, env) == 0 for command in commands(*asked, uv=options)):
            return 0
    print(
        "uv cannot install here (its words are above), so pip does it, which takes some minutes", flush=True
    )
    return next((status for command in commands(*asked) if (status := _run(command))), 0)


def _run(command: list[str], env: Mapping[str, str] | None = None) -> int:
    """Run a command and return its exit status. uv's own variables are left out: pip's settings count."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("UV_") or name == "UV_CACHE_DIR"
    }
    return subprocess.run(command, env={**kept, **(env or {})}).returncode


if __name__ == "__main__":
    sys.exit(main())

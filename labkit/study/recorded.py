"""Reports that are kept in data/recorded: of experiments by machine, of the ledger by torch version."""

from __future__ import annotations

import re
from pathlib import Path

from labkit import files

__all__ = ["home", "ledger", "ledgers", "newest"]


def newest(name: str, machine: str | None = None, folder: Path | None = None) -> Path | None:
    """Find the newest recording of an experiment.

    Args:
        name: of the report.
        machine: such as '2-core-cpu'; None for any.
        folder: by default data/recorded of this checkout.

    Returns:
        The path, or None where there is none.

    >>> newest("cliff").name, newest("cliff", machine="abacus")
    ('cliff.json', None)
    """
    root = files.ours("data/recorded") if folder is None else folder
    found = []
    for path in root.glob(f"*/{name}.json"):
        parts = re.fullmatch(r"(.+)-(\d{4}-\d{2}-\d{2})", path.parent.name)
        if parts and machine in (None, parts[1]):
            found.append((parts[2], path.parent.name, path))
    return max(found)[2] if found else None


def home() -> Path:
    """The folder of the recorded runs: that of the checkout; of an installed labkit, the reader's own data folder."""
    ours = files.ours("data/recorded")
    return ours if ours.parent.parent.joinpath("pyproject.toml").is_file() else files.home()


def _key(version: str) -> tuple[int, ...]:
    return tuple(
        map(int, re.findall(r"\d+", version)[:3])
    )  # a nightly build has more behind its three numbers


def ledgers(folder: Path | None = None) -> dict[str, Path]:
    """Find the recorded run of the ledger on each torch version.

    Args:
        folder: by default that of `home`, and what comes with labkit.

    Returns:
        Paths by version, the oldest first.

    >>> "2.13.0" in ledgers()
    True
    """
    found = {}
    for root in [files.ours("data/recorded"), home()] if folder is None else [folder]:
        for path in root.glob("torch-*/ledger.json"):
            version = path.parent.name.removeprefix("torch-")
            if version.replace(".", "").isdigit():
                found[version] = path
    return {version: found[version] for version in sorted(found, key=_key)}


def ledger(torch: str) -> Path | None:
    """Find the recorded run of the ledger on this torch, else on the newest before it, else on the oldest there is.

    >>> ledger("2.13.0+cpu").parent.name
    'torch-2.13.0'
    """
    there, mine = ledgers(), _key(torch.partition("+")[0])
    before = [path for version, path in there.items() if _key(version) <= mine]
    return before[-1] if before else next(iter(there.values()), None)

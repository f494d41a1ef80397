"""Figures copied from the source documents, as tables: not measured here, each row with its document and section."""

from __future__ import annotations

import pandas as pd

from labkit.files import ours

__all__ = ["load", "names"]

FOLDER = ours("data/reference")


def names() -> list[str]:
    """The tables there are. Raises ValueError where labkit was installed without the repository.

    >>> names()
    ['activation_offload', 'compiled_autograd', 'issue_138773', 'scope_runs']
    """
    if not FOLDER.is_dir():
        raise ValueError("the reference tables are part of the repository: run labkit from a checkout of it")
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def load(name: str) -> pd.DataFrame:
    """The table `name`; data/reference/README.md says what its columns hold.

    Raises ValueError for an unknown name, or where labkit was installed without the repository.

    >>> runs = load("scope_runs").set_index("run")
    >>> float(runs.loc["Run 12b", "frames_per_s"]), runs.loc["Runs 8-9b", "variant"]
    (24.5, 'B')
    """
    known = names()
    if name not in known:
        raise ValueError(f"there is no reference table {name!r}: there are {', '.join(known)}")
    whole = {
        c: "Int64"
        for c in ("breaks_per_forward", "unique_graphs_low", "unique_graphs_high", "graph_breaks", "fsdp")
    }
    table = pd.read_csv(FOLDER / f"{name}.csv", dtype={"torch": str, "frames_per_s": float})
    return table.astype({column: kind for column, kind in whole.items() if column in table})

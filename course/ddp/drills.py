"""Drills of data-parallel training: each is played on all ranks, and how it ends is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from course.shared.options import chosen
from course.shared.training import TOLERANCE
from labkit import torch_compat
from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quiet_stderr
from labkit.report import Report

__all__ = ["run"]

TIMEOUT_S = 120.0
RIGHT, SILENT, RAISES, WAITS = "right", "silent and wrong", "raises", "waits, and is ended"


def run(ranks: Ranks, drills: Mapping[str, Callable[[], float]], *, stall: float) -> Report:
    """Play drills in turn; each ends by itself, or is ended and its ranks replaced.

    Args:
        ranks: started ranks, at least 2.
        drills: by name, a function for every rank, which returns how far its gradients are from the right ones, as a
            share of the largest of the same parameter.
        stall: seconds after which ranks that all wait for each other are ended.

    Returns:
        Table `drills`: drill, ended ('right'; 'silent and wrong'; 'raises'; 'waits, and is ended'), said (the error's
        first line, or how far gradients are apart). Table `said` has the whole of it.

    Raises:
        ValueError: there is no drill, or a single rank; nothing has run then.

    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     list(run(ranks, {"fine": lambda: 0.0, "off": lambda: 0.5}, stall=5).frame["ended"])
    ['right', 'silent and wrong']
    """
    names = chosen([], drills, "drill")
    if not names:
        raise ValueError("nothing to play: give at least one drill")
    if ranks.world_size < 2:
        raise ValueError(f"a drill needs at least 2 ranks, and these are {ranks.world_size}")
    rows = []
    for name in names:
        try:
            apart = max(ranks.run(_play, drills[name], timeout=TIMEOUT_S, stall=stall).values())
        except RankError as error:
            first = error.outcomes[0]
            ended = WAITS if error.hung else RAISES
            said = error.headline if error.hung else f"rank {first.rank}: {first.type}: {first.message}"
            said, whole = said.splitlines()[0], str(error)
        else:
            ended = RIGHT if apart <= TOLERANCE else SILENT
            said = whole = f"gradients apart by {apart:.2g} of the largest"
        rows.append({"drill": name, "ended": ended, "said": said, "all": whole})
    table = pd.DataFrame(rows)
    tables = {"drills": table.drop(columns="all"), "said": table[["drill", "all"]]}
    return Report("ddp_drills", "What goes wrong, and how it ends", ranks.label, tables)


def _play(drill: Callable[[], float]) -> float:
    torch_compat.dynamo_reset()
    with quiet_stderr(), torch_compat.quiet_dynamo(), torch_compat.ddp_mode("ddp_optimizer"):
        return float(drill())

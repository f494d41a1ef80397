"""What survives what: each kind of artifact that a compile leaves behind, used after a change, in a fresh process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch.distributed as dist

from course.cold.declared import SURVIVAL as ABOUT
from course.cold.experiment import machine
from course.shared.options import chosen
from course.shared.program import choose
from course.shared.sweep import Sweep
from labkit import torch_compat
from labkit.ranks import Ranks
from labkit.report import Report, provenance, run_label

__all__ = ["VARIABLE", "run"]

VIEW = "course.cold.figures:survival_figure"
VARIABLE = "environment"  # size_asserts is off by TORCHINDUCTOR_SIZE_ASSERTS=0, in a new interpreter
NEEDED = ("check_cpu", "KINDS", "CHANGES", "leave_products", "use")  # what is taken of the program
COLUMNS = ["kind", "change", "outcome", "said", "seconds", "asserts"]


def run(
    ranks: Ranks,
    kind: Sequence[str] = (),
    change: Sequence[str] = (),
    *,
    full: bool = False,
    fresh: bool = False,
    folder: str | Path | None = None,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Use each kind of artifact in a fresh process after each change, and say how that ended.

    The program is lesson 12's `Products`, for which no C++ has to be built: what is looked up, and by which key, is the
    same. The outcome is 'hit' (right, and nothing was compiled), 'miss' (right, and compiled again), 'refused' (an
    error) or 'wrong' (it ran, and its numbers are not those of the program as it is now).

    Args:
        ranks: as many pairs are tried at once as there are of these; each in a process that has compiled nothing, with
            caches of its own.
        kind: which kinds; by default all.
        change: which changes; by default all but the one by an environment variable, which needs new interpreters.
        full: every change.
        program: the cells of lesson 12, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.

    Returns:
        The report, with the table `outcomes`.

    Raises:
        ValueError: before any rank is started, for a name that does not exist.
        RankError: a rank fails.
    """
    ours = choose("cold", program, NEEDED)
    code, every = ours.code, [*ours.code.CHANGES, VARIABLE]
    kinds = chosen(kind, code.KINDS, "kind")
    changes = chosen(change, every, "change") if change or full else list(code.CHANGES)
    settings = {"world_size": ranks.world_size, "program": ours.digest}
    sweep = Sweep("survival", settings, folder, fresh, talk)
    place = sweep.place / "made"
    pairs = [(k, c) for c in changes for k in kinds]
    size = ranks.world_size
    points: dict[str, Any] = {"built": None}
    for env in (False, True):  # a variable is read by a new interpreter only
        mine = [pair for pair in pairs if (pair[1] == VARIABLE) == env]
        for i in range(0, len(mine), size):
            points["; ".join(f"{k} after {c}" for k, c in mine[i : i + size])] = mine[i : i + size]

    def measure(point: list[tuple[str, str]] | None) -> list[dict[str, Any]]:
        new: dict[str, Any] = {}
        if point is None:
            place.mkdir(parents=True, exist_ok=True)
            machine(place, ours)
        elif point[0][1] == VARIABLE:
            new = {"start": "fresh", "env": {"TORCHINDUCTOR_SIZE_ASSERTS": "0"}}
        with Ranks(size, "cpu", "gloo", quiet=True, **new) as own:
            if point is None:
                own.run(code.leave_products, place, timeout=600)
                return []
            return [row for row in own.run(_use, code.use, place, point, timeout=600) if row]

    rows = sweep.run(points, measure)
    label = run_label("gloo", "cpu", size)  # of the processes that were started here
    order = {name: i for names in (code.KINDS, every) for i, name in enumerate(names)}
    made = provenance(**settings, resumed=sweep.resumed)
    return _report(rows, label, made, order, [*ours.notes, *filter(None, [sweep.note()])])


def _use(use: Any, place: Path, pairs: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """On a rank: what its own pair of the list comes to; None where there are fewer pairs than ranks."""
    if dist.get_rank() >= len(pairs):
        return None
    kind, change = pairs[dist.get_rank()]
    began = time.perf_counter()
    outcome, said = use(kind, change, place)
    asserts = bool(torch_compat.setting("inductor.config.size_asserts"))
    found = (kind, change, outcome, said, time.perf_counter() - began, asserts)
    return dict(zip(COLUMNS, found, strict=True))


def _report(
    rows: list[dict[str, Any]], label: str, settings: dict[str, Any], order: dict[str, int], more: list[str]
) -> Report:
    frame = pd.DataFrame(rows, columns=COLUMNS).sort_values(["kind", "change"], key=lambda s: s.map(order))
    frame = frame.reset_index(drop=True)
    summary = frame.groupby(["kind", "outcome"], sort=False).size().unstack(fill_value=0)
    summary = summary.reindex(columns=["hit", "miss", "refused", "wrong"], fill_value=0).reset_index()
    notes = [
        "the torch version is changed in name only: it goes into the keys, and the libraries are the same",
        *more,
    ]
    tables = {"outcomes": frame, "summary": summary}
    return Report("survival", ABOUT.title, label, tables, [], settings, notes, VIEW)

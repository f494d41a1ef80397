"""Whose a file or a row is: the rank by the path, by what torch printed, by process numbers and by ends of ranks."""

from __future__ import annotations

import re
from dataclasses import replace

from oddrank.postmortem.logs import Log
from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import MOST_RANKS

__all__ = ["ENDED_BY_LAUNCHER", "owners", "rank_of", "settle"]

NAMED = (
    re.compile(r"(?:^|[^a-z])rank[_.=-]?(\d+)(?!\d)", re.I),
    re.compile(r"attempt_\d+/(\d+)/std(?:out|err)\.log$"),
    re.compile(r"(?:^|/)[^/]*?[_.-](\d+)(?:\.[a-z]\w*)?$", re.I),
)
JOB = re.compile(
    r"(?:^|/)(?:slurm-\d+[^/]*|[^/]*[_.-]\d{5,}\.(?:out|err|log))$", re.I
)  # Slurm's names: `%x-%j.out`
ENDED_BY_LAUNCHER = ("-15", "143")
RAISED = ("error", "gloo", "named", "memory", "store")  # as what a traceback counts
LAUNCHERS = re.compile(r"ChildFailedError|SignalException")  # errors of the launcher itself
SIGNALS = {"Aborted": "-6", "Segmentation fault": "-11", "Bus error": "-7"}


def rank_of(path: str) -> int | None:
    """The rank that a path names, None where it names none.

    >>> rank_of("tt/dedicated_log_torch_trace_rank_3_x1y.log"), rank_of("logs/x/attempt_0/2/stderr.log")
    (3, 2)
    >>> rank_of("nccl_trace_rank_12"), rank_of("trace_7"), rank_of("stacks_1.txt"), rank_of("launcher.log")
    (12, 7, 1, None)
    >>> rank_of("slurm-77.out"), rank_of("train-123456.out")
    (None, None)
    """
    for pattern in NAMED[:2] if JOB.search(path) else NAMED:
        if (found := pattern.search(path)) and int(found[1]) < MOST_RANKS:
            return int(found[1])
    return None


def settle(log: Log) -> None:
    """A launcher names a file by the local rank: where all that torch printed is of one other rank, that one counts."""
    if log.rank is not None and len(log.prefixed) == 1 and (rank := next(iter(log.prefixed))) != log.rank:
        log.rows = [
            replace(row, rank=rank) if row.rank == log.rank and row.kind != "exit" else row
            for row in log.rows
        ]
        log.rank = rank


def owners(material: Material, pids: dict[str, int]) -> None:
    """Give rows the rank that other files show to be theirs; `pids` has the rank of a process, where a log says it."""
    _processes(material, pids)
    _aborted(material)
    _failed(material)


def _processes(material: Material, pids: dict[str, int]) -> None:
    """A stack of py-spy names a process, its file often, too: which rank that is, a log says, or nothing."""
    ended = [row.key for row in material.rows if row.kind == "process"]
    spied = {(row.file, row.key) for row in material.rows if row.kind == "stack" and row.key}
    for file in material.files:
        if (file.name, str(file.rank)) in spied:
            file.rank = None
    for at, row in enumerate(material.rows):
        if row.kind == "stack" and row.key == str(row.rank):
            material.rows[at] = replace(row, rank=None)
    if ended and len(set(ended)) == len(ended) and set(material.ranks()) <= set(range(len(ended))):
        # torchrun ends them by their local rank
        pids = dict(zip(ended, range(len(ended)), strict=True)) | pids
    for at, row in enumerate(material.rows):
        if row.kind == "stack" and row.key in pids:
            material.rows[at] = replace(row, rank=pids[row.key])


def _aborted(material: Material) -> None:
    """The text of an abort has no rank in a log of all ranks: where one rank alone ended by that signal, it is its."""
    for text, code in SIGNALS.items():
        ends = [
            row for row in material.rows if row.kind == "abort" and row.text == f"Fatal Python error: {text}"
        ]
        ranks = {row.rank for row in material.rows if row.kind == "exit" and row.key == code}
        if len(ends) != 1 or ends[0].rank is not None or len(ranks) != 1:
            continue
        end, found = ends[0], False
        for at, row in enumerate(material.rows):
            if row.rank is not None or row.file != end.file or row.line < end.line - 4:
                continue
            stack = row.kind == "stack" and not row.key and not found and row.line > end.line
            found = found or stack
            if stack or (row.kind in ("abort", "gloo") and row.line <= end.line):
                material.rows[at] = replace(row, rank=next(iter(ranks)))


def _failed(material: Material) -> None:
    """The one traceback without a rank is that of the one rank that torchrun saw end with the status of an error."""
    failed = {row.rank for row in material.rows if row.kind == "exit" and row.key not in ENDED_BY_LAUNCHER}
    raised = {row.rank for row in material.rows if row.kind == "exit" and row.key == "1"}
    found = [
        at for at, row in enumerate(material.rows) if row.rank is None and row.frames and row.kind in RAISED
    ]
    found = [at for at in found if not LAUNCHERS.search(material.rows[at].text)]
    own = any(row.rank in raised and row.frames and row.kind in RAISED for row in material.rows)
    if len(failed) == len(raised) == 1 and len({material.rows[at].text for at in found}) == 1 and not own:
        for at in found:
            material.rows[at] = replace(material.rows[at], rank=next(iter(raised)))

"""Records that were written before the end of their rank: its stack or error stands in a call that they lack."""

from __future__ import annotations

import re

from oddrank.postmortem.differences import Difference
from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import Call, Frame, Row, is_own

__all__ = ["age", "contradicted"]

# functions that call a collective, which the record then has, and return when it has ended
CALLS = re.compile(
    r"(all_reduce|all_gather|all_gather_into_tensor|all_to_all|all_to_all_single|broadcast|reduce|reduce_scatter"
    r"|reduce_scatter_tensor|gather|scatter|barrier)$"
)
SIZES = "Received data size"
NOTABLE_S = 10


def contradicted(found: list[Difference], material: Material) -> dict[int, tuple[str, str]]:
    """The ranks whose records are of an earlier moment, each with what shows it, and where.

    A rank that stands, or ended, in a collective has it last in its record, at the same line; and a rank that gloo
    aborted because of a size has two sizes under one number. Where neither is so, the rank went on after its record,
    and so did those that wait for it there.

    Args:
        found: the differences of the records.
        material: what was read.
    """
    ranks: dict[int, tuple[str, str]] = {}
    for rank, dump in material.dumps.items():
        last = next((call for call in reversed(dump.calls) if not call.p2p), None)
        for row in _ends(material, rank):
            if last and _inside(row) and not _same_line(last, row):
                ranks[rank] = (f"rank {rank} was in another call, at {row.where}, later", row.cite)
    for difference in found:
        if difference.what != "missing":
            continue
        for rank in difference.absent:
            aborts = [row for row in material.of(rank, "gloo") if SIZES in row.text]
            if aborts and rank in material.dumps:
                ranks.setdefault(
                    rank, (f"gloo ended rank {rank} in a call of two sizes, later", aborts[0].cite)
                )
            for other, call in difference.present.items() if rank in ranks else ():
                if call in [c for c in material.dumps[other].calls if not c.p2p][-1:]:
                    ranks.setdefault(
                        other, (f"it waits for rank {rank}, which went on later", ranks[rank][1])
                    )
    return ranks


def _ends(material: Material, rank: int) -> list[Row]:
    """The errors of a rank, and its stack where it has one only, or one of an abort: earlier ones tell nothing."""
    stacks = material.of(rank, "stack")
    aborts = material.of(rank, "abort")
    if aborts:
        stacks = [row for row in stacks if row.file == aborts[-1].file and row.line > aborts[-1].line]
    elif len(stacks) > 1 or any(material.written(row.file) < material.dumps[rank].written for row in stacks):
        stacks = []
    return [*(row for row in material.of(rank, "gloo", "named") if row.frames), *stacks[-1:]]


def _above(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return frames[: next((i for i, frame in enumerate(frames) if is_own(frame.file)), len(frames))]


def _inside(row: Row) -> bool:
    """Whether a stack is in a function that calls a collective."""
    above = _above(row.frames)
    return any(f.file.endswith("distributed/distributed_c10d.py") and CALLS.match(f.name) for f in above)


def _same_line(call: Call, row: Row) -> bool:
    """Whether a call was made where a stack stands; that of an error may end where the error was caught."""
    ways = [
        [(f.file.rpartition("/")[2], f.line) for f in frames if is_own(f.file)]
        for frames in (call.frames, row.frames)
    ]
    return not all(ways) or all(one == other for one, other in zip(*ways, strict=False))


def age(material: Material, rank: int, cite: str = "") -> str:
    """How much older a rank's record is than a piece of evidence, or than its other files, in words; '' if hardly.

    Args:
        material: what was read.
        rank: whose record.
        cite: the evidence, as `file:line`.
    """
    dump = material.dumps.get(rank) or material.older[rank]
    if cite:
        later = material.written(cite.rpartition(":")[0])
    else:
        later = max((read.written for read in material.reads if read.rank == rank), default=0.0)
    gap = later - dump.written
    return f"by the times of the files {gap:.0f} s older" if dump.written and gap >= NOTABLE_S else ""

"""Records that were written before the end of their rank: its stack or error stands in a call that they lack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from oddrank.postmortem.calls import Call, Dump
from oddrank.postmortem.differences import Difference, differences
from oddrank.postmortem.material import Material
from oddrank.postmortem.messages import messages
from oddrank.postmortem.rows import Row, above_own, is_own

__all__ = ["age", "current_differences"]

# functions that call a collective, which the record then has, and return when it has ended
CALLS = re.compile(
    r"(all_reduce|all_gather|all_gather_into_tensor|all_to_all|all_to_all_single|broadcast|reduce|reduce_scatter"
    r"|reduce_scatter_tensor|gather|scatter|barrier)$"
)
SIZES = "Received data size"
NOTABLE_S = 10


def current_differences(material: Material, ranks: list[int]) -> list[Difference]:
    """The differences of the records; those that are or may be of an earlier moment are set aside first, as `stale`.

    Args:
        material: what was read; its `dumps` and `stale` change.
        ranks: of the job.
    """
    while True:
        found = differences(material.dumps, ranks) + messages(material.dumps)
        found = [difference for difference in found if not _behind(difference, material)]
        why = _contradictions(found, material)
        stale = list(why) or _early(found, material.dumps)
        if not stale:
            return found
        material.why |= why
        for rank in stale:
            material.stale[rank] = material.dumps.pop(rank)


def _behind(difference: Difference, material: Material) -> bool:
    """Whether a rank is only behind because its record is older: the others' calls are done, and no rank failed."""
    later = [calls[n] for calls in difference.group.calls.values() for n in calls if n >= difference.seq]
    if difference.what != "missing" or any(call.open for calls in later for call in calls):
        return False
    failed = ("gloo", "named", "watchdog", "error", "abort", "memory", "exit")
    return not any(row.kind in failed for row in material.rows)


def _early(found: Iterable[Difference], dumps: Mapping[int, Dump]) -> list[int]:
    """The ranks whose record may have been written before the others', in order.

    Such a record ends before that call, also in time; the call has ended on the others, and one of them went on.
    A rank that stopped there looks the same where the others did not wait for each call: the records do not tell.

    Args:
        found: the differences.
        dumps: the flight records by rank.
    """
    ranks: dict[int, None] = {}
    for difference in found:
        present = difference.present.items()
        if difference.what != "missing" or any(call.open for _, call in present):
            continue
        if not any(dumps[rank].calls[-1].index > call.index for rank, call in present):
            continue
        since = min(call.created for call in difference.present.values())
        for rank in difference.absent:
            if all(call.created < since for call in dumps[rank].calls):
                ranks[rank] = None
    return list(ranks)


def _contradictions(found: list[Difference], material: Material) -> dict[int, tuple[str, str]]:
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
        last = next(reversed(dump.collectives), None)
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
                if material.dumps[other].ends_with(call):
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


def _inside(row: Row) -> bool:
    """Whether a stack is in a function that calls a collective."""
    above = above_own(row.frames)
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
    dump = material.dumps.get(rank) or material.stale[rank]
    if cite:
        later = material.written(cite.rpartition(":")[0])
    else:
        later = max((file.written for file in material.files if file.rank == rank), default=0.0)
    gap = later - dump.written
    return f"by the times of the files {gap:.0f} s older" if dump.written and gap >= NOTABLE_S else ""

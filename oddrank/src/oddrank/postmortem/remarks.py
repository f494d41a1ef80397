"""What texts say apart from records: torch's own findings, calls in foreign groups, strays, an end from outside."""

from __future__ import annotations

import re

from oddrank.postmortem.clues import named
from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import Row
from oddrank.postmortem.states import Said, doing

__all__ = ["by_torch", "outside", "strangers", "strays"]

OWN = re.compile(
    r"Rank (\d{1,5}) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), "
    r"(OpType=\w+(?:, TensorShape=\[[^\]]*\])?(?:, TensorDtypes=\w+)?)"
)
MISSED = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier in (\d{1,12}) ms")


def by_torch(material: Material) -> tuple[list[int], Said, list[Said]] | None:
    """What torch itself found: calls that differ (TORCH_DISTRIBUTED_DEBUG=DETAIL), or who missed a monitored barrier.

    Of the two calls in such a text only the reporting rank's own is taken: the other is read from a message that may
    belong to another kind of call.

    Returns:
        The odd ranks, those on the smaller side; the verdict; what led to it. None where torch found nothing.
    """
    rows = [row for row in material.rows if row.kind == "named"]
    sides: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if found := OWN.search(row.text):
            sides.setdefault((found[2], found[3]), {}).setdefault(int(found[1]), row)
    chain = []
    for (number, what), by_rank in sides.items():
        some = next(iter(by_rank.values()))
        at = f" at {some.where}" if some.where else ""
        cites = tuple(row.cite for row in list(by_rank.values())[:3])
        chain.append(Said(f"{named(list(by_rank))}: {what} as number {number}{at}", cites))
    if sides:
        every = sorted(sides.values(), key=len)
        odd = list(every[0]) if len(every) > 1 and len(every[0]) < len(every[1]) else []
        cites = tuple(next(iter(side.values())).cite for side in every[:3])
        text = "torch compared the calls of the ranks, and they differ"
        text += f": {named(odd)} called another than {named(list(every[-1]))}" if odd else ""
        chain += [said for rank in odd for said in doing(material, rank, [], 0)]
        return odd or sorted(rank for side in every for rank in side), Said(text, cites), chain
    for row in sorted(rows, key=lambda row: not row.where):  # the same text is logged without the line, too
        if found := MISSED.search(row.text):
            absent = [int(number) for number in re.findall(r"\d{1,5}", found[1])]
            text = f"{named(absent)} did not come to a monitored barrier in {int(found[2]) / 1000:g} s"
            text += f", called at {row.where}" if row.where else ""
            told = [said for rank in absent[:4] for said in doing(material, rank, [], 0)]
            return absent, Said(text, (row.cite,)), told
    return None


def strangers(material: Material) -> list[Said]:
    """Calls in a group that the rank is not in, of which torch warns: such a call does nothing."""
    said: dict[int, Said] = {}
    for row in material.rows:
        if row.kind == "stranger" and row.rank is not None:
            text = f"rank {row.rank} called {row.key} in a group that it is not in, and so did nothing there"
            said.setdefault(row.rank, Said(text, (row.cite,)))
    return list(said.values())[:8]


def outside(material: Material) -> list[Said]:
    """A signal that the launcher got, or Slurm's text that it ended the job."""
    rows = [row for row in material.rows if row.kind == "outside"][:1]
    return [Said(f"the job was ended from outside: {row.text}", (row.cite,)) for row in rows]


def strays(material: Material) -> list[Said]:
    """Stacks of processes of which nothing says which rank they are."""
    rows = [row for row in material.rows if row.kind == "stack" and row.rank is None and row.key]
    said = []
    for row in rows[:8]:
        what = f"{row.text}, at " if row.text != "elsewhere" else "at "
        text = f"process {row.key}, of which nothing says the rank, is {what}{row.where or row.frames[0]}"
        said.append(Said(text, (row.cite,)))
    return said

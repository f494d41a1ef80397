"""What torch, NCCL and gloo found themselves and wrote down, where it is a verdict: calls or sizes that differ."""

from __future__ import annotations

import re

from oddrank.postmortem.activity import activity
from oddrank.postmortem.compilation import another_graph
from oddrank.postmortem.differences import likeness
from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import Row
from oddrank.postmortem.sentences import Sentence, rank_names, sentence
from oddrank.postmortem.verdict import Verdict

__all__ = ["fingerprints", "sizes", "watchdogs"]

OWN = re.compile(
    r"Rank (\d{1,5}) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), "
    r"(OpType=\w+(?:, TensorShape=\[[^\]]*\])?(?:, TensorDtypes=\w+)?)"
)
MISSED = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier in (\d{1,12}) ms")
WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), (OpType=\w+, NumelIn=\d+, NumelOut=\d+)")


def fingerprints(material: Material) -> Verdict | None:
    """What torch itself found: calls that differ (TORCH_DISTRIBUTED_DEBUG=DETAIL), or who missed a monitored barrier.

    Of the two calls in such a text only the reporting rank's own is taken: the other is read from a message that may
    belong to another kind of call.
    """
    rows = [row for row in material.rows if row.kind == "named"]
    sides: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if found := OWN.search(row.text):
            sides.setdefault((found[2], found[3]), {}).setdefault(int(found[1]), row)
    if not sides:
        return _barrier(material, rows)
    chain = []
    for (number, what), by_rank in sides.items():
        some = next(iter(by_rank.values()))
        at = f" at {some.where}" if some.where else ""
        chain.append(
            sentence(f"{rank_names(by_rank)}: {what} as number {number}{at}", *list(by_rank.values())[:3])
        )
    every = sorted(sides.values(), key=len)
    odd = list(every[0]) if len(every) > 1 and len(every[0]) < len(every[1]) else []
    text = "torch compared the calls of the ranks, and they differ"
    text += f": {rank_names(odd)} called another than {rank_names(every[-1])}" if odd else ""
    chain += [one for rank in odd for one in activity(material, rank, [], 0)]
    head = sentence(text, *(next(iter(side.values())) for side in every[:3]))
    return Verdict("difference", odd or sorted(rank for side in every for rank in side), head, chain)


def _barrier(material: Material, rows: list[Row]) -> Verdict | None:
    for row in sorted(rows, key=lambda row: not row.where):  # the same text is logged without the line, too
        if found := MISSED.search(row.text):
            absent = [int(number) for number in re.findall(r"\d{1,5}", found[1])]
            text = f"{rank_names(absent)} did not come to a monitored barrier in {int(found[2]) / 1000:g} s"
            text += f", called at {row.where}" if row.where else ""
            chain = [one for rank in absent[:4] for one in activity(material, rank, [], 0)]
            return Verdict("difference", absent, sentence(text, row), chain)
    return None


def watchdogs(material: Material) -> Verdict | None:
    """The ranks whose NCCL watchdog names another call than most under one number, and what each names."""
    numbers: dict[int, dict[str, list[tuple[int, Row]]]] = {}
    for row in material.rows:
        if (found := WORK.search(row.text)) and row.rank is not None:
            numbers.setdefault(int(found[1]), {}).setdefault(found[2], []).append((row.rank, row))
    for number, calls in sorted(numbers.items()):
        if len(calls) > 1:
            sides = sorted(calls.items(), key=lambda side: -len(side[1]))
            chain = []
            for what, pairs in sides:
                text = f"{rank_names(rank for rank, _ in pairs)}: {what} as number {number}"
                chain.append(sentence(text, *(row for _, row in pairs[:3])))
            tie = len(sides[0][1]) == len(sides[1][1])
            odd = sorted({rank for _, pairs in (sides if tie else sides[1:]) for rank, _ in pairs})
            text = "the watchdogs name different calls under one number; the group is not in that line"
            return Verdict("difference", odd, Sentence(text, chain[0].evidence), chain)
    return None


def sizes(material: Material) -> Verdict | None:
    """gloo's abort where a message is larger than its buffer, and no record shows the two calls.

    The verdict names the rank with another size if the others' records or graphs agree in theirs, else none.
    """
    rows = [row for row in material.rows if row.kind == "gloo" and "Received data size" in row.text]
    if not rows:
        return None
    ranks = material.ranks()
    aborted = sorted({row.rank for row in rows if row.rank is not None})
    found = re.search(r"(\d+) vs (\d+)", rows[0].text)
    sent = f"{found[1]} bytes where {found[2]} were expected" if found else "more than it expected"
    who = rank_names(aborted) if aborted else "a rank that the text does not name"
    head = sentence(
        f"in one collective the sizes differ: {who} aborted, because a peer sent {sent}", *rows[:3]
    )
    chain = [one for rank in aborted for one in activity(material, rank, [], 0)]
    for rank in ranks:
        lost = [row for row in material.of(rank, "gloo") if row.where and rank not in aborted]
        if lost:
            chain.append(sentence(f"rank {rank} was in the call at {lost[-1].where}", lost[-1]))
    calls = {r: dump.calls[-1] for r, dump in material.dumps.items() if dump.calls and r not in aborted}
    alike = len({(one.group, one.seq, likeness([one])) for one in calls.values()}) == 1
    if len(aborted) == 1 and len(calls) > 1 and alike and {*calls, *aborted} == set(ranks):
        called = f"{rank_names(calls)} called {next(iter(calls.values())).phrase}"
        text = f"{called}, all with this size: rank {aborted[0]}'s is another"
        return Verdict("difference", aborted, head, [*chain, sentence(text, *list(calls.values())[:3])])
    odd = {rank: graph for rank in ranks if (graph := another_graph(material, rank, ranks))}
    if len(odd) == 1:
        return Verdict("difference", list(odd), head, [*chain, *odd.values()])
    chain.append(Sentence("whether the sender or the receiver has the wrong size, this text does not say"))
    return Verdict("difference", [], head, chain)

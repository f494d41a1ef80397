"""What the records say beside the first difference: a call more or less, another order, other lines, another group."""

from __future__ import annotations

from oddrank.postmortem.differences import Difference, likeness
from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import Sentence, rank_names, sentence

__all__ = ["ends_without_record", "last_call", "other_group", "other_lines", "shifted_calls"]


def shifted_calls(difference: Difference) -> list[Sentence]:
    """Of two lists that differ: whether one has a call more, or the two calls in the other order."""
    if len(difference.kinds) < 2:
        return []
    mine, theirs = difference.kinds[1][0], difference.kinds[0][0]
    calls = [difference.group.calls[rank] for rank in (mine, theirs)]
    a, b = ([likeness(c[n]) for n in (difference.seq, difference.seq + 1) if n in c] for c in calls)
    if len(a) > 1 and len(b) > 1 and a == b[::-1]:
        text = f"ranks {mine} and {theirs} make the same two calls in the other order"
    elif len(a) > 1 and a[1] == b[0]:
        text = f"rank {mine} goes on as rank {theirs} began: it has one call more, or rank {theirs} one less"
    elif len(b) > 1 and b[1] == a[0]:
        text = f"rank {theirs} goes on as rank {mine} began: rank {mine} has one call less, or rank {theirs} one more"
    else:
        return []
    return [sentence(text, difference.present[mine], difference.present[theirs])]


def last_call(material: Material, difference: Difference, rank: int) -> list[Sentence]:
    """The last call that the rank made, where it is in another group or before."""
    calls = material.dumps[rank].calls if rank in material.dumps else []
    if not calls or calls[-1] is difference.present.get(rank):
        return []
    return [sentence(f"rank {rank}'s last call is {calls[-1].phrase}", calls[-1])]


def other_lines(difference: Difference) -> list[Sentence]:
    """Where the odd ranks made like calls before the first difference, but at other lines than the others."""
    calls = difference.group.calls
    odd = [rank for rank in difference.odd if rank in calls]
    others = [rank for rank in calls if rank not in odd]
    found = None
    for seq in range(difference.seq - 1, 0, -1):
        made = [[calls[rank].get(seq) for rank in side] for side in (odd, others)]
        ways = [{those[0].way if those else "" for those in side} for side in made]
        if any(len(way) != 1 or "" in way for way in ways) or ways[0] == ways[1]:
            break
        found = seq
    if found is None:
        return []
    mine, theirs = (calls[side[0]][found][0] for side in (odd, others))
    text = f"before that, at collective {found} of {difference.group}, the ranks made like calls at different lines:"
    text += f" {rank_names(odd)} at {mine.where}, {rank_names(others)} at {theirs.where}"
    return [sentence(text, mine, theirs)]


def other_group(material: Material, difference: Difference) -> list[Sentence]:
    """Where a rank that has not come to a call made one in another group, last, and at the same line."""
    for here in difference.present.values():
        for rank in difference.absent:
            there = next(reversed(material.dumps[rank].calls), None)
            if (
                there
                and here.where
                and (there.way, there.op) == (here.way, here.op)
                and there.group != here.group
            ):
                text = f"at the line where rank {here.rank} called {here.op} of {here.of}"
                text += f", rank {rank}'s last call is of {there.of}: {there.phrase}"
                return [sentence(text, here, there)]
    return []


def ends_without_record(material: Material, difference: Difference) -> list[Sentence]:
    """Ranks without a record whose error is at the line of one of the calls that differ."""
    sentences = []
    for rank in difference.unseen[:64]:
        rows = [row for row in material.of(rank, "gloo", "watchdog") if row.where]
        ends = {row.where.partition(" < ")[0]: row for row in rows}
        sides = [ranks for ranks in difference.kinds if difference.present[ranks[0]].line in ends]
        if len(sides) == 1:
            row = ends[difference.present[sides[0][0]].line]
            text = f"rank {rank}, of which there is no record, ended at the line of {rank_names(sides[0])}: {row.where}"
            sentences.append(sentence(text, row))
    return sentences[:8]

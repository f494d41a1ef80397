"""The verdict where ranks ended by themselves: an error, a signal, no memory."""

from __future__ import annotations

from oddrank.postmortem.activity import occupation
from oddrank.postmortem.differences import Difference
from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import Row
from oddrank.postmortem.sentences import Sentence, sentence
from oddrank.postmortem.verdict import Verdict

__all__ = ["death"]


def death(material: Material, dead: dict[int, list[Row]], way: list[Difference]) -> Verdict:
    """The verdict on dead ranks.

    Args:
        material: what was read.
        dead: by rank, what says of what it died.
        way: the differences that come of each other.
    """
    ranks = sorted(dead)
    first, *others = ranks
    head, *more = dead[first]
    chain = [sentence(f"rank {first}: {row.text}", row) for row in more if row.kind != "error"]
    chain += [sentence(f"rank {rank} ended, too: {dead[rank][0].text}", dead[rank][0]) for rank in others]
    if others:
        chain.append(Sentence("which of them was first, the material does not say"))
    for difference in way[-1:]:
        if set(difference.absent) & set(ranks):
            chain += difference.calls()
    for rank in ranks[:4]:
        chain += occupation(material, rank, [r for r in material.ranks() if r not in ranks], 0)
    for rank in material.ranks():
        lost = [row for row in material.of(rank, "gloo") if "Connection" in row.text]
        if rank not in dead and lost:
            where = f" in the call at {lost[-1].where}" if lost[-1].where else ""
            chain.append(sentence(f"rank {rank} lost its connection{where}", lost[-1]))
    text = f"rank {first} ended by itself: {head.text}{head.at}"
    return Verdict("dead", ranks, sentence(text, head), chain, difference=way[-1] if way else None)

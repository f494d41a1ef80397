"""The verdict where ranks wait for each other in different groups or messages."""

from __future__ import annotations

from oddrank.postmortem.activity import activity
from oddrank.postmortem.differences import Difference
from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import Sentence, rank_names, sentence
from oddrank.postmortem.verdict import Verdict

__all__ = ["circle"]


def circle(material: Material, way: list[Difference]) -> Verdict:
    """The verdict on a circle.

    Args:
        material: what was read.
        way: its differences: in each, ranks wait for those that wait in the next.
    """
    absent = [{rank for other in way if other is not one for rank in other.absent} for one in way]
    sides = [sorted(set(one.present) & ranks) for one, ranks in zip(way, absent, strict=True)]
    within = sorted({rank for side in sides for rank in side})
    chain = [one for difference in way for one in difference.calls()]
    chain += [one for difference in way if difference.what == "order" for one in _late(difference, way)]
    fewest, *others = sorted(sides, key=len)
    odd = fewest if others and len(fewest) < len(others[0]) else []
    for rank in within:
        if not odd and (why := _other_line(material, way, rank)):
            odd = [rank]
            chain.append(why)
    places = " and ".join(
        f"{rank_names(side)} in {one.phrase}, for {rank_names(r for r in one.absent if r in within)}"
        for side, one in zip(sides, way, strict=True)
    )
    text = f"ranks wait for each other in different groups: {places}; "
    text += (
        f"{rank_names(odd)} went another way than the others"
        if odd
        else "which went wrong, the records do not say"
    )
    for rank in (odd or within)[:4]:
        chain += activity(material, rank, [], 0)
    head = sentence(text, *(call for one in way for call in list(one.present.values())[:2]))
    difference = next((one for one in way if set(odd) & set(one.absent)), way[-1])
    return Verdict("circle", odd or within, head, chain, difference=difference)


def _late(difference: Difference, way: list[Difference]) -> list[Sentence]:
    """Which ranks made the call, too, and after which other one."""
    sentences = []
    for rank in difference.absent:
        before = next((other.present[rank] for other in way if rank in other.present), None)
        mine = difference.group.calls[rank][difference.seq][0]
        if before:
            text = f"rank {rank} made {difference.phrase}, too, at {mine.where}, but after {before.phrase}"
            sentences.append(sentence(f"{text}, which has not ended", mine, before))
    return sentences


def _other_line(material: Material, way: list[Difference], rank: int) -> Sentence | None:
    """A rank whose call before this one is at another line than that of all others in the same call."""
    for difference in way:
        if rank not in difference.present:
            continue
        before = {}
        for r, call in difference.present.items():
            before[r] = next((c for c in reversed(material.dumps[r].calls) if c.index < call.index), None)
        mine, peers = before[rank], [call for r, call in before.items() if r != rank and call]
        ways = {call.way for call in peers}
        if mine and len(peers) > 1 and len(ways) == 1 and mine.way not in ways:
            others = rank_names(r for r in before if r != rank)
            text = f"before {difference.phrase}, {others} called {peers[0].op} at {peers[0].where}"
            return sentence(f"{text}, and rank {rank} called {mine.op} at {mine.where}", mine, peers[0])
    return None

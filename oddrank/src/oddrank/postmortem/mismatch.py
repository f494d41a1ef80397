"""The verdict where the records differ: the first collective that a rank has not made, or made in another way."""

from __future__ import annotations

from oddrank.postmortem import clues, compilation, staleness
from oddrank.postmortem.activity import activity
from oddrank.postmortem.differences import Difference
from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import Sentence, rank_names, sentence
from oddrank.postmortem.verdict import Verdict

__all__ = ["mismatch"]

MOST_SENTENCES = 40


def mismatch(material: Material, way: list[Difference]) -> Verdict:
    """The verdict on a difference.

    Args:
        material: what was read.
        way: the differences that come of each other; the last is the one that the others come of.
    """
    difference = way[-1]
    odd = difference.odd
    others = [rank for rank in difference.present if rank not in odd]
    chain = difference.calls()
    for rank in difference.absent[:3] if difference.what == "missing" else ():
        if age := staleness.age(material, rank):
            text = f"the record of rank {rank} is {age} than its last file: it may have made the call since"
            chain.append(sentence(text, material.dumps[rank]))
    for before in reversed(way[:-1]):
        text = f"{before.phrase} waits for the same: {rank_names(before.absent)} did not come to it"
        chain.append(sentence(text, *list(before.present.values())[:3]))
    chain += clues.ends_without_record(material, difference) + clues.shifted_calls(difference)
    chain += clues.other_lines(difference) + clues.other_group(material, difference)
    some = next(iter(difference.present.values()))
    for rank in dict.fromkeys([*(odd or sorted(difference.present)[:2]), *difference.absent[:3]]):
        peers = others or sorted(set(material.ranks()) - {rank})
        known = activity(material, rank, peers, some.timeout_ms)
        if rank in difference.absent and not known:
            text = f"what rank {rank} did instead is not known: there is no stack, compile or error of it"
            known = [Sentence(text)]
        chain += known + clues.last_call(material, difference, rank)
        if len(chain) > MOST_SENTENCES:
            break
    chain += compilation.caches(material, odd, others)
    chain += compilation.graphs(material, odd or list(difference.present), others)
    ranks = odd or sorted(difference.present)
    return Verdict("difference", ranks, _head(material, difference), chain, difference=difference)


def _head(material: Material, difference: Difference) -> Sentence:
    odd, present, absent = difference.odd, difference.present, difference.absent
    calls = list(present.values())
    if difference.what == "missing":
        has, wait = "has" if len(absent) == 1 else "have", "waits" if len(present) == 1 else "wait"
        text = f"{rank_names(absent)} {has} not made {difference.phrase}, {calls[0]}"
        text += f", in which {rank_names(present)} {wait}"
        return sentence(text, *(material.dumps[rank] for rank in absent[:3]))
    if odd:
        others = [rank for rank in present if rank not in odd]
        call, other = next((present[rank] for rank in odd if rank in present), calls[0]), present[others[0]]
        text = f"{rank_names(odd)} called {call} as {difference.phrase}, and {rank_names(others)} {other}"
        return sentence(text, call, other)
    text = f"the ranks differ at {difference.phrase} ({difference.what}), as many on each side"
    return sentence(f"{text}: which is wrong, the records do not say", *calls[:2])

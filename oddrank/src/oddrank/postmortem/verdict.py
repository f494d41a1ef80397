"""The verdict: which rank, at which collective, and what it did in its place; each sentence has its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from oddrank.postmortem import clues, differences, gaps, group_creation, remarks, staleness, waits
from oddrank.postmortem.differences import Difference
from oddrank.postmortem.material import Material
from oddrank.postmortem.states import Said, State, deaths, doing, during, open_compile, spell, states

__all__ = ["Verdict", "judge"]

FAULTS = ("error", "thread", "named", "gloo", "watchdog", "abort", "memory")


@dataclass(slots=True)
class Verdict:
    """What is told. `kind` is one of difference, circle, dead, waiting, nothing wrong, cannot tell.

    `ranks` are those that the others wait for or differ from; `difference` is the first one, where there is one.
    """

    kind: str
    ranks: list[int]
    head: Said
    chain: list[Said] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    difference: Difference | None = None

    @property
    def told(self) -> bool:
        """Whether there is a verdict at all."""
        return self.kind != "cannot tell"


def judge(material: Material) -> Verdict:
    """Join what all ranks left.

    Args:
        material: what was read.

    Returns:
        The verdict; where the material does not reach, it says so in `unknown`.
    """
    ranks = material.ranks()
    found = _found(material, ranks)
    way, circle = differences.root(found, material.dumps)
    if not circle and (crossed := waits.crossed(found, material.dumps)):
        way, circle = crossed, True
    waiting = _waiting(material, found)
    by_rank = states(material, ranks, waiting)
    dead = {rank: rows for rank in ranks if (rows := deaths(material, rank))}
    named = remarks.by_torch(material)
    if dead and not (way and way[-1].what != "missing"):
        verdict = _dead(material, dead, way)
    elif circle:
        verdict = _circle(material, way)
    elif way:
        verdict = _difference(material, way, ranks)
    elif named:
        verdict = Verdict("difference", *named)
    elif sizes := [row for row in material.rows if row.kind == "gloo" and "Received data size" in row.text]:
        verdict = Verdict("difference", *clues.by_abort(material, sizes, ranks))
    elif found_apart := group_creation.apart(material):
        verdict = Verdict("difference", *found_apart)
    else:
        verdict = _none(material, ranks, by_rank)
    if named and way:
        verdict.chain.insert(0, named[1])
    if verdict.kind not in ("dead", "nothing wrong"):
        verdict.chain[:0] = remarks.strangers(material)
        verdict.chain += remarks.strays(material)
    verdict.chain += remarks.outside(material)
    verdict.states = by_rank
    verdict.unknown += gaps.gaps(material, ranks, verdict.ranks, verdict.kind == "nothing wrong")
    return verdict


def _found(material: Material, ranks: list[int]) -> list[Difference]:
    """The differences of the records; those that may be of an earlier moment are set aside first."""
    while True:
        found = differences.differences(material.dumps, ranks) + waits.messages(material.dumps)
        found = [d for d in found if not _moments(d, material)]
        later = staleness.contradicted(found, material)
        ranks = list(later or differences.older(found, material.dumps))
        if not ranks:
            return found
        material.why |= later
        for rank in ranks:
            material.older[rank] = material.dumps.pop(rank)


def _moments(difference: Difference, material: Material) -> bool:
    """Whether a rank is only behind because its record is older: the others' calls are done, and no rank failed."""
    later = [calls[n] for calls in difference.group.calls.values() for n in calls if n >= difference.seq]
    if difference.what != "missing" or any(call.open for calls in later for call in calls):
        return False
    failed = ("gloo", "named", "watchdog", "error", "abort", "memory", "exit")
    return not any(row.kind in failed for row in material.rows)


def _waiting(material: Material, found: list[Difference]) -> dict[int, Said]:
    said = {}
    unseen = set(material.ranks()) - set(material.dumps)
    for rank, dump in material.dumps.items():
        call = next((call for call in dump.calls if call.open), None)
        # gloo marks a call as ended some time after it has returned: of itself, the mark says nothing
        if call and (dump.backend != "gloo" or any(call is d.present.get(rank) for d in found) or unseen):
            said[rank] = Said(f"waits in {clues.call(call)}", (call.cite,))
    for difference in found:
        for rank, call in difference.present.items():
            calls = [c for c in material.dumps[rank].calls if not c.p2p]
            if call in calls[-1:] and material.dumps[rank].backend == "gloo":  # its state says nothing
                said.setdefault(rank, Said(f"its last call is {clues.call(call)}", (call.cite,)))
    return said


def _dead(material: Material, dead: dict[int, list], way: list[Difference]) -> Verdict:
    ranks = sorted(dead)
    first = ranks[0]
    row = dead[first][0]
    where = f", at {row.where}" if row.where else ""
    head = Said(f"rank {first} ended by itself: {row.text}{where}", (row.cite,))
    chain = [
        Said(f"rank {first}: {more.text}", (more.cite,)) for more in dead[first][1:] if more.kind != "error"
    ]
    for rank in ranks[1:]:
        more = dead[rank][0]
        chain.append(Said(f"rank {rank} ended, too: {more.text}", (more.cite,)))
    if len(ranks) > 1:
        chain.append(Said("which of them was first, the material does not say"))
    for difference in way[-1:]:
        if set(difference.absent) & set(ranks):
            chain += _those(difference)
    for rank in ranks[:4]:
        chain += during(material, rank, [r for r in material.ranks() if r not in ranks], 0)
    for rank in material.ranks():
        lost = [r for r in material.of(rank, "gloo") if "Connection" in r.text]
        if rank not in dead and lost:
            said = f"rank {rank} lost its connection"
            chain.append(
                Said(said + (f" in the call at {lost[-1].where}" if lost[-1].where else ""), (lost[-1].cite,))
            )
    return Verdict("dead", ranks, head, chain, difference=way[-1] if way else None)


def _those(difference: Difference) -> list[Said]:
    """Who called what: one sentence for each kind of call."""
    said = []
    for ranks in difference.kinds:
        call = difference.present[ranks[0]]
        cites = tuple(difference.present[rank].cite for rank in ranks[:3])
        named = "rank" if len(ranks) == 1 else "ranks"
        said.append(Said(f"{named} {spell(ranks)}: {clues.call(call)}", cites))
    return said


def _difference(material: Material, way: list[Difference], ranks: list[int]) -> Verdict:
    difference = way[-1]
    odd = difference.odd
    others = [rank for rank in difference.present if rank not in odd]
    some = next(iter(difference.present.values()))
    chain = _those(difference)
    if difference.what == "missing":
        there, absent = sorted(difference.present), difference.absent
        verb = "has" if len(absent) == 1 else "have"
        text = f"{clues.named(absent)} {verb} not made {clues.place(difference)}, {some}"
        text += f", in which {clues.named(there)} wait" + ("s" if len(there) == 1 else "")
        cites = tuple(material.dumps[rank].file for rank in absent[:3])
        for rank in absent[:3]:
            if old := staleness.age(material, rank):
                said = (
                    f"the record of rank {rank} is {old} than its last file: it may have made the call since"
                )
                chain.append(Said(said, (material.dumps[rank].file,)))
    elif odd:
        call = next((difference.present[r] for r in odd if r in difference.present), some)
        text = f"{clues.named(odd)} called {call} as {clues.place(difference)}"
        text += f", and {clues.named(others)} {difference.present[others[0]]}"
        cites = (call.cite, difference.present[others[0]].cite)
    else:
        text = f"the ranks differ at {clues.place(difference)} ({difference.what}), as many on each side"
        text += ": which is wrong, the records do not say"
        cites = tuple(call.cite for call in list(difference.present.values())[:2])
    for before in reversed(way[:-1]):
        chain.append(
            Said(
                f"{clues.place(before)} waits for the same: {clues.named(before.absent)} did not come to it",
                _cites(before),
            )
        )
    chain += clues.beside(material, difference) + clues.likely(material, difference)
    chain += clues.lines(material, difference) + clues.other_group(material, difference)
    for rank in dict.fromkeys([*(odd or sorted(difference.present)[:2]), *difference.absent[:3]]):
        told = doing(material, rank, others or sorted(set(ranks) - {rank}), some.timeout_ms)
        if rank in difference.absent and not told:
            told = [
                Said(f"what rank {rank} did instead is not known: there is no stack, compile or error of it")
            ]
        chain += told
        chain += clues.last_call(material, difference, rank)
        if len(chain) > 40:
            break
    chain += clues.caches(material, odd, others) + clues.graphs(
        material, odd or list(difference.present), others
    )
    return Verdict(
        "difference", odd or sorted(difference.present), Said(text, cites), chain, difference=difference
    )


def _cites(difference: Difference) -> tuple[str, ...]:
    return tuple(call.cite for call in list(difference.present.values())[:3])


def _circle(material: Material, way: list[Difference]) -> Verdict:
    """Ranks that wait for each other in different groups."""
    sides = [
        sorted(set(d.present) & {r for other in way if other is not d for r in other.absent}) for d in way
    ]
    chain = [said for difference in way for said in _those(difference)]
    chain += [said for difference in way if difference.what == "order" for said in _late(difference, way)]
    odd: list[int] = []
    why: list[Said] = []
    order = sorted(range(len(way)), key=lambda i: len(sides[i]))
    if len(way) > 1 and len(sides[order[0]]) < len(sides[order[1]]):
        odd = sides[order[0]]
    for rank in sorted({r for side in sides for r in side}):
        if not odd and (said := clues.unlike(material, way, rank)):
            odd, why = [rank], [said]
    within = {r for side in sides for r in side}
    places = " and ".join(
        f"{clues.named(side)} in {clues.place(d)}, for {clues.named([r for r in d.absent if r in within])}"
        for side, d in zip(sides, way, strict=True)
    )
    text = f"ranks wait for each other in different groups: {places}"
    text += (
        f"; {clues.named(odd)} went another way than the others"
        if odd
        else "; which went wrong, the records do not say"
    )
    chain += why
    everybody = odd or sorted({r for side in sides for r in side})
    for rank in everybody[:4]:
        told = doing(material, rank, [], 0)
        chain += told
    head = Said(text, tuple(cite for d in way for cite in _cites(d)[:2]))
    difference = next((d for d in way if set(odd) & set(d.absent)), way[-1])
    return Verdict("circle", everybody, head, chain, difference=difference)


def _late(difference: Difference, way: list[Difference]) -> list[Said]:
    """Which ranks made the call, too, and after which other one."""
    said = []
    for rank in difference.absent:
        before = next((other.present[rank] for other in way if rank in other.present), None)
        mine = difference.group.calls[rank][difference.seq][0]
        if before:
            text = f"rank {rank} made {clues.place(difference)}, too, at {mine.where}, but after {clues.call(before)}"
            said.append(Said(text + ", which has not ended", (mine.cite, before.cite)))
    return said


def _none(material: Material, ranks: list[int], by_rank: dict[int, State]) -> Verdict:
    waiting = [r for r in ranks if by_rank[r].name == "waiting"]
    others = [r for r in ranks if r not in waiting]
    if waiting:
        call = clues.awaited(material, waiting, by_rank)
        places = clues.places(waiting, by_rank)
        at = f" in {clues.call(call)}" if call and len(places) < 2 else ""
        keys = {row.key for r in waiting for row in material.of(r, "store")[-1:]}
        if not call and len(keys) == 1 and all(material.of(r, "store") for r in waiting):
            at = f" for the key {keys.pop()} of the store"
        cites = tuple(by_rank[r].said.evidence[0] for r in waiting[:3] if by_rank[r].said.evidence)
        text = f"{clues.named(waiting)} wait{'s' if len(waiting) == 1 else ''}{at}"
        chain = [Said(f"rank {r}: {by_rank[r].said.text}", by_rank[r].said.evidence) for r in waiting[:6]]
        busy = [
            r
            for r in others
            if by_rank[r].name in ("compiling", "elsewhere", "dead") or open_compile(material, r)
        ]
        for rank in busy[:8]:
            chain += doing(material, rank, waiting, call.timeout_ms if call else 0)
        chain += clues.graphs(material, others, waiting)
        if busy:
            return Verdict(
                "waiting", busy, Said(f"{text}, and {clues.named(busy)} did something else", cites), chain
            )
        if others:
            told = [r for r in others if by_rank[r].name in ("cut off", "elsewhere")]
            for rank in told[:8]:
                chain.append(Said(f"rank {rank}: {by_rank[rank].said.text}", by_rank[rank].said.evidence))
                chain += doing(material, rank, waiting, call.timeout_ms if call else 0)
            if silent := [r for r in others if r not in told]:
                text += f"; what {clues.named(silent)} did, nothing here says"
            else:
                text += f"; what {clues.named(told)} called, no record shows"
            return Verdict("waiting", others, Said(text, cites), chain)
        differing, named = clues.watchdogs(material)
        if named:
            text = "the watchdogs name different calls under one number; the group is not in that line"
            return Verdict("difference", differing, Said(text, named[0].evidence), named)
        if len(places) > 1:
            sides = sorted(places.items(), key=lambda side: len(side[1]))
            text = "all ranks wait, not at one place: "
            text += "; ".join(f"{clues.named(side)} at {at}" for at, side in sides[:6])
            odd = sides[0][1] if len(sides[0][1]) < len(sides[1][1]) else []
            for rank in waiting[:6]:
                chain += doing(material, rank, [r for r in waiting if r != rank], 0)
            return Verdict("waiting", odd or waiting, Said(text, cites), chain)
        text = f"all ranks{at} wait, and no record shows one that is not there"
        text += ": a rank without files, the link, or a wait for something else"
        return Verdict("cannot tell", [], Said(text, cites), chain)
    if cut := [r for r in ranks if by_rank[r].name == "cut off"]:
        if quiet := [r for r in ranks if by_rank[r].name == "unknown"]:
            return Verdict("waiting", quiet, *clues.quiet(material, cut, quiet, by_rank))
    mute = ("ChildFailedError", *(["SignalException"] if remarks.outside(material) else ()))
    bad = [row for row in material.rows if row.kind in FAULTS and not any(name in row.text for name in mute)]
    if bad:
        chain = [
            Said(f"rank {'?' if row.rank is None else row.rank}: {row.text}{at}", (row.cite,))
            for row in bad[:8]
            for at in [f", at {row.where}" if row.where else ""]
        ]
        text = "there are errors, and no rank that they could be laid to"
        if cut and all(row.rank in cut for row in bad):
            text = f"{clues.named(cut)} lost the connection to a rank of which nothing here says what it did"
        return Verdict("cannot tell", [], Said(text), chain)
    busy = [r for r in ranks if by_rank[r].name == "compiling"]
    if busy:
        text = f"{clues.named(busy)} {'is' if len(busy) == 1 else 'are'} compiling; no rank is known to wait"
        return Verdict(
            "waiting",
            busy,
            Said(text, tuple(by_rank[r].said.evidence[0] for r in busy[:3])),
            [s for r in busy[:8] for s in doing(material, r, [], 0)],
        )
    if len(material.dumps) > 1:
        total = sum(len(dump.calls) for dump in material.dumps.values())
        text = f"nothing is wrong in what is here: {len(material.dumps)} records with {total} calls agree"
        opened = any(call.open for dump in material.dumps.values() for call in dump.calls)
        text += "" if opened else ", and none is open"
        chain = [
            Said(f"rank {r}: {by_rank[r].said.text}", by_rank[r].said.evidence)
            for r in ranks[:8]
            if by_rank[r].name == "elsewhere"
        ]
        cites = tuple(dump.file for dump in list(material.dumps.values())[:3])
        return Verdict("nothing wrong", [], Said(text, cites), chain)
    return Verdict("cannot tell", [], Said("no failure and no comparison of ranks is in what is here"))

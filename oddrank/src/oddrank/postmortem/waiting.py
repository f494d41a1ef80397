"""The verdict where no records differ: ranks that wait, that lost their connection, that compile, or nothing wrong."""

from __future__ import annotations

from oddrank.postmortem import compilation, remarks
from oddrank.postmortem.activity import activity
from oddrank.postmortem.calls import Call
from oddrank.postmortem.differences import likeness
from oddrank.postmortem.findings import watchdogs
from oddrank.postmortem.material import Material
from oddrank.postmortem.sentences import Sentence, rank_names, sentence
from oddrank.postmortem.states import State
from oddrank.postmortem.verdict import Verdict

__all__ = ["without_difference"]

FAULTS = ("error", "thread", "named", "gloo", "watchdog", "abort", "memory")
States = dict[int, State]


def without_difference(material: Material, states: States) -> Verdict:
    """The verdict on a job whose records do not differ, or are not there."""
    if waiting := _of(states, "waiting"):
        return _waiting(material, states, waiting)
    cut = _of(states, "cut off")
    if cut and (silent := _of(states, "unknown")):
        return _silent(material, states, cut, silent)
    mute = ("ChildFailedError", *(["SignalException"] if remarks.outside(material) else ()))
    faults = [
        row for row in material.rows if row.kind in FAULTS and not any(name in row.text for name in mute)
    ]
    if faults:
        text = "there are errors, and no rank that they could be laid to"
        if cut and all(row.rank in cut for row in faults):
            text = f"{rank_names(cut)} lost the connection to a rank of which nothing here says what it did"
        chain = [
            sentence(f"rank {'?' if row.rank is None else row.rank}: {row.text}{row.at}", row)
            for row in faults[:8]
        ]
        return Verdict("cannot tell", [], Sentence(text), chain)
    if compiling := _of(states, "compiling"):
        verb = "is" if len(compiling) == 1 else "are"
        text = f"{rank_names(compiling)} {verb} compiling; no rank is known to wait"
        chain = [one for rank in compiling[:8] for one in activity(material, rank, [], 0)]
        return Verdict("waiting", compiling, Sentence(text, _evidence(states, compiling)), chain)
    if len(material.dumps) > 1:
        return _agreement(material, states)
    return Verdict("cannot tell", [], Sentence("no failure and no comparison of ranks is in what is here"))


def _of(states: States, *names: str) -> list[int]:
    return [rank for rank, state in states.items() if state.name in names]


def _evidence(states: States, ranks: list[int]) -> tuple[str, ...]:
    return tuple(cite for rank in ranks[:3] for cite in states[rank].sentence.evidence[:1])


def _lines(states: States, ranks: list[int]) -> list[Sentence]:
    """The state of each rank as a sentence."""
    sentences = {rank: states[rank].sentence for rank in ranks}
    return [Sentence(f"rank {rank}: {one.text}", one.evidence) for rank, one in sentences.items()]


def _waiting(material: Material, states: States, waiting: list[int]) -> Verdict:
    others = [rank for rank in states if rank not in waiting]
    call = _awaited(material, states, waiting)
    places = _places(states, waiting)
    at = f" in {call.phrase}" if call and len(places) < 2 else ""
    keys = {row.key for rank in waiting for row in material.of(rank, "store")[-1:]}
    if not call and len(keys) == 1 and all(material.of(rank, "store") for rank in waiting):
        at = f" for the key {keys.pop()} of the store"
    cites = _evidence(states, waiting)
    text = f"{rank_names(waiting)} wait{'s' if len(waiting) == 1 else ''}{at}"
    timeout_ms = call.timeout_ms if call else 0
    chain = _lines(states, waiting[:6])
    busy = _of(states, "compiling", "elsewhere", "dead")
    busy = [rank for rank in others if rank in busy or compilation.open_compile(material, rank)]
    for rank in busy[:8]:
        chain += activity(material, rank, waiting, timeout_ms)
    chain += compilation.graphs(material, others, waiting)
    if busy:
        text += f", and {rank_names(busy)} did something else"
        return Verdict("waiting", busy, Sentence(text, cites), chain)
    if others:
        cut = [rank for rank in others if states[rank].name == "cut off"]
        for rank in cut[:8]:
            chain += _lines(states, [rank]) + activity(material, rank, waiting, timeout_ms)
        silent = [rank for rank in others if rank not in cut]
        text += f"; what {rank_names(silent or cut)} "
        text += "did, nothing here says" if silent else "called, no record shows"
        return Verdict("waiting", others, Sentence(text, cites), chain)
    if calls := watchdogs(material):
        return calls
    if len(places) > 1:
        sides = sorted(places.items(), key=lambda side: len(side[1]))
        text = "all ranks wait, not at one place: "
        text += "; ".join(f"{rank_names(side)} at {place}" for place, side in sides[:6])
        odd = sides[0][1] if len(sides[0][1]) < len(sides[1][1]) else []
        for rank in waiting[:6]:
            chain += activity(material, rank, [other for other in waiting if other != rank], 0)
        return Verdict("waiting", odd or waiting, Sentence(text, cites), chain)
    text = f"all ranks{at} wait, and no record shows one that is not there"
    text += ": a rank without files, the link, or a wait for something else"
    return Verdict("cannot tell", [], Sentence(text, cites), chain)


def _awaited(material: Material, states: States, waiting: list[int]) -> Call | None:
    """The call that ranks wait in: an open one, or the last one of all of them, where their errors are at its line."""
    collectives = {rank: material.dumps[rank].collectives for rank in waiting if rank in material.dumps}
    if call := next((call for calls in collectives.values() for call in calls if call.open), None):
        return call
    last = {rank: calls[-1] for rank, calls in collectives.items() if calls}
    alike = len({(call.group, call.seq, likeness([call])) for call in last.values()}) == 1
    there = all(call.where and call.line in states[rank].sentence.text for rank, call in last.items())
    return next(iter(last.values())) if alike and there else None


def _places(states: States, waiting: list[int]) -> dict[str, list[int]]:
    """The lines at which ranks wait, each with its ranks; empty where one of them is not known."""
    places: dict[str, list[int]] = {}
    for rank in waiting:
        place = states[rank].sentence.text.removesuffix(", by a compiled graph").rpartition(" at ")[2]
        if ".py:" not in place.partition(" in ")[0]:
            return {}
        places.setdefault(place, []).append(rank)
    return places


def _silent(material: Material, states: States, cut: list[int], silent: list[int]) -> Verdict:
    """Ranks that lost their connection, and others that left neither an error nor a stack."""
    call = _awaited(material, states, cut)
    text = f"{rank_names(cut)} lost the connection" + (f" in {call.phrase}" if call else "")
    chain = _lines(states, cut[:6])
    exits = {row.rank: row for row in material.rows if row.kind == "exit"}
    if exits and not set(exits) & set(silent):
        who = f"{rank_names(silent)} {'is' if len(silent) == 1 else 'are'}"
        what = "not in the launcher's table of failures: exit code 0, or another node"
        chain.append(sentence(f"{who} {what}", *list(exits.values())[:3]))
    head = Sentence(f"{text}; how {rank_names(silent)} ended, nothing here says", _evidence(states, cut))
    return Verdict("waiting", silent, head, chain)


def _agreement(material: Material, states: States) -> Verdict:
    dumps = list(material.dumps.values())
    text = f"nothing is wrong in what is here: {len(dumps)} records with {sum(len(d.calls) for d in dumps)} calls agree"
    text += "" if any(call.open for dump in dumps for call in dump.calls) else ", and none is open"
    chain = _lines(states, _of(dict(list(states.items())[:8]), "elsewhere"))
    return Verdict("nothing wrong", [], sentence(text, *dumps[:3]), chain)

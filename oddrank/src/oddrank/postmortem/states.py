"""The state of each rank at the end: dead, compiling, waiting, elsewhere or unknown, with its evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oddrank.postmortem.activity import deaths, main_stacks, thread_end
from oddrank.postmortem.compilation import open_compile, under_way
from oddrank.postmortem.differences import Difference
from oddrank.postmortem.material import Material
from oddrank.postmortem.owners import ENDED_BY_LAUNCHER
from oddrank.postmortem.phrases import WAITS
from oddrank.postmortem.rows import Row
from oddrank.postmortem.sentences import Sentence, sentence

__all__ = ["State", "states"]

PLACES = (
    "new_group",
    "init_process_group",
    "init_device_mesh",
    "split_group",
    "monitored_barrier",
    "barrier",
)
STORE = re.compile(r"DistStoreError|wait timeout after|[Tt]imed out .*store")


@dataclass(frozen=True, slots=True)
class State:
    """What a rank did at the end: `name` is dead, compiling, waiting, cut off, elsewhere, ended or unknown."""

    name: str
    sentence: Sentence


def states(material: Material, found: list[Difference]) -> dict[int, State]:
    """The state of each rank at the end.

    Args:
        material: all that was read.
        found: the differences of the flight records.
    """
    waits = _waits(material, found)
    return {rank: _state(material, rank, waits.get(rank)) for rank in material.ranks()}


def _waits(material: Material, found: list[Difference]) -> dict[int, Sentence]:
    """The ranks of which the flight records say that they wait."""
    sentences = {}
    unseen = set(material.ranks()) - set(material.dumps)
    for rank, dump in material.dumps.items():
        call = next((call for call in dump.calls if call.open), None)
        # gloo marks a call as ended some time after it has returned: of itself, the mark says nothing
        if call and (dump.backend != "gloo" or any(call is d.present.get(rank) for d in found) or unseen):
            sentences[rank] = sentence(f"waits in {call.phrase}", call)
    for difference in found:
        for rank, call in difference.present.items():
            dump = material.dumps[rank]
            if dump.ends_with(call) and dump.backend == "gloo":  # its state says nothing
                sentences.setdefault(rank, sentence(f"its last call is {call.phrase}", call))
    return sentences


def _state(material: Material, rank: int, waits: Sentence | None) -> State:
    if rows := deaths(material, rank):
        return State("dead", sentence(rows[-1].text + rows[-1].at, rows[-1]))
    begin, stack = open_compile(material, rank), next(reversed(main_stacks(material, rank)), None)
    if waits:
        return State("waiting", waits)
    if begin:
        return State("compiling", under_way(begin))
    if stack and stack.text == "compiling":
        return State("compiling", sentence(f"its stack is in the compiler, called at {stack.where}", stack))
    errors = [row for row in material.of(rank, "error") if STORE.search(row.text)]
    for row in [*material.of(rank, "store"), *errors]:
        key = row.key if row.kind == "store" else row.text[:160]
        return State("waiting", sentence(f"{_in_store(row)}: {key}{row.at}", row))
    for row in sorted(material.of(rank, "named"), key=lambda row: not row.where):
        return State("waiting", sentence(row.text[:160] + row.at, row))
    for row in material.of(rank, "gloo", "watchdog"):
        if WAITS.search(row.text):
            return State("waiting", sentence(row.text[:160] + row.at, row))
    for row in reversed(material.of(rank, "gloo")):
        name = "cut off" if "Connection" in row.text else "dead"
        return State(name, sentence(row.text[:160] + row.at, row))
    if stack and stack.text.startswith("in "):
        return State("waiting", sentence(f"its stack is {stack.text}, called at {stack.where}", stack))
    if stack:
        wait = f", {stack.text}" if stack.text.startswith("waiting") else ""
        return State("elsewhere", sentence(f"its stack is at {stack.where or stack.frames[0]}{wait}", stack))
    if threads := material.of(rank, "thread"):
        return State("elsewhere", thread_end(threads[-1]))
    if exits := material.of(rank, "exit"):
        by = "the launcher ended it: " if exits[-1].key in ENDED_BY_LAUNCHER else ""
        return State("ended", sentence(by + exits[-1].text, exits[-1]))
    dump = material.dumps.get(rank) or material.stale.get(rank)
    if dump or rank in material.last:
        cite, time = material.last.get(rank, (dump.file if dump else "", ""))
        return State(
            "unknown", Sentence(f"what is here ends {f'at {time}' if time else 'without a fault'}", (cite,))
        )
    return State("unknown", Sentence("no file is of this rank, or none says what it did"))


def _in_store(row: Row) -> str:
    inside = next((frame.name for frame in row.frames if frame.name in PLACES), "")
    return f"waited in {inside} for a key of the store" if inside else "waited for a key of the store"

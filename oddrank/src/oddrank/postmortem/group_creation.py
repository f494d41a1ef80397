"""Ranks that wait in the making of a process group, whose name stands in the key of the store."""

from __future__ import annotations

import re

from oddrank.postmortem.material import Material
from oddrank.postmortem.rows import Row
from oddrank.postmortem.sentences import Sentence, rank_names, sentence
from oddrank.postmortem.verdict import Verdict

__all__ = ["different_groups", "group_of"]

# /default_pg/0//NAME//cpu//0/1: the store's prefixes, the group's name, the device, and the key of a member
NAME = re.compile(r"//([^/]+)//[a-z]+(?:/|$)")
ADVICE = (
    "each rank numbers the groups that it makes: either the ranks have not made the same groups in one order, or one"
    " waits in an earlier group. Print group_name and get_process_group_ranks after each new_group, on each rank"
)


def group_of(key: str) -> str:
    """The name of the group in whose making a rank waits for this key of the store, '' for any other key.

    >>> group_of("/default_pg/0//2//cpu//0/1"), group_of("/0//2//cuda//0"), group_of("/default_pg/0//cpu//0/1")
    ('2', '2', '')
    """
    found = NAME.search(key)
    return found[1] if found else ""


def different_groups(material: Material) -> Verdict | None:
    """The verdict on ranks that wait in the making of different groups; None where no two ranks wait so."""
    waits: dict[str, list[Row]] = {}
    for rank in material.ranks():
        rows = [row for row in material.of(rank, "store") if group_of(row.key)]
        if rows:
            waits.setdefault(group_of(rows[-1].key), []).append(rows[-1])
    sides = sorted(waits.items(), key=lambda side: len(side[1]))
    chain: list[Sentence] = []
    odd: set[int] = set()
    for name, rows in sides:
        used = [c for dump in material.dumps.values() for c in dump.calls if c.group == name]
        other = [call for call in used if call.rank not in _ranks(rows)]
        # gloo's group is made before the first call in it: who still waits for it makes another one
        if other and len(other) == len(used) and material.dumps[other[0].rank].backend == "gloo":
            call, odd = other[0], odd | set(_ranks(rows))
            text = (
                f"{rank_names({c.rank for c in other})} made group {name} ({call.of}) and called {call} in it"
            )
            text += f" at {call.where}: {rank_names(_ranks(rows))} makes another group under this name"
            chain.append(sentence(text, call, rows[0]))
    if len(waits) < 2 and not odd:
        return None
    places = []
    for name, rows in sides:
        verb = "waits" if len(rows) == 1 else "wait"
        where = f" at {rows[0].where}" if rows[0].where else ""
        places.append(f"{rank_names(_ranks(rows))} {verb} in the making of group {name}{where}")
    text = f"the ranks make different groups: {' and '.join(places)}"
    head = sentence(text, *(row for _, rows in sides for row in rows[:2]))
    return Verdict("difference", sorted(odd), head, [*chain, Sentence(ADVICE)])


def _ranks(rows: list[Row]) -> list[int]:
    return sorted(row.rank for row in rows if row.rank is not None)

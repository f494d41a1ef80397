"""The engine under test, behind one function: `found`."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Any

from oddrank.record import Record, record
from oddrank.record.guard_words import again
from oddrank.record.tables import POINT_TO_POINT
from programs import Program, call, place

_PLACE = re.compile(r"(.+?):(\d+)(?: \(.*\))?$")


def found(program: Program) -> dict[str, Any]:
    """Run a program on this rank, and return what the engine says of it.

    It makes the program, calls its step for each turn in order (`programs.call`), and returns JSON:

    * `compiles`: every compile of all turns, oldest first.
        * `id`: torch's own, such as "0/1": a frame, and which compile of it.
        * `function`, `place`, `resumed`: the code's name; where it is defined, or the line at which a rest goes on.
        * `outcome`: "graph"; "empty": code without a graph; "gave-up": runs as plain Python; "error": raised.
        * `ops`: operators in Dynamo's graph. `pieces`: graphs that the backend was given, several where DDP cuts one.
        * `runs`: how often its code ran in the last turn. `failed_at`: the line of an error, "" where torch has none.
        * `why`: of a recompile, the failed guard of the newest code, as torch writes it. `words`: the same in words.
    * `breaks`: every break, and every frame given up for one, in the order of the compiles that met it.
        * `compile`: the id. `kind`: "break" or "gave-up". `reason`: one line.
        * `place`: the innermost line of the program, also where the break is in a function that was inlined.
        * `executed`: how often it ran in the last turn; `at_collective`: how often a collective ran eagerly after it.
    * `collectives`: those that ran in the last turn, each kind of call once with its `count`, sorted.
        * `op`: one name for all spellings, such as "all_reduce". `group`: the number of ranks in its group.
        * `shape`, `dtype`: of its (first) input, None for a barrier. `in_graph`: whether a compiled graph ran it.
        * `place`: the innermost line of the program that called it; None where no line did, as for DDP's buckets.
    * `totals`: `regions`, `breaks`, `at_collective`, `collectives`, `graph_runs` of the last turn.
    * `raises`: the type of the error that the last turn raised, or "".

    Places are those of `programs.place`. Messages between two ranks are no collectives.
    """
    step, raised = program.make(), ""
    with record(shapes=True) as rec:
        for turn in range(program.turns):
            with rec.forward() if turn == program.turns - 1 else contextlib.nullcontext():
                raised = call(step, turn)
    breaks = [
        {
            "compile": one.compile,
            "kind": one.kind,
            "place": _said(one.place),
            "reason": re.sub("^recompile limit: .*", "Dynamo recompile limit exceeded", one.reason),
            "executed": one.executed,
            "at_collective": one.at_collective,
        }
        for one in rec.breaks
    ]
    (counts,) = rec.counts.dicts()
    totals = ("regions", "breaks", "at_collective", "collectives", "graph_runs")
    return {
        "compiles": _compiles(rec),
        "breaks": breaks,
        "collectives": _collectives(rec),
        "totals": {name: int(counts[name]) for name in totals},
        "raises": raised,
    }


def _compiles(rec: Record) -> list[dict[str, Any]]:
    failed = {m.compile: place(m.file, m.line) for m in rec.marks if m.kind == "error" and m.exact}
    return [
        {
            "id": one.id,
            "function": one.func.rpartition(".")[2],
            "place": place(one.file, one.resume or one.line),
            "resumed": bool(one.resume),
            "outcome": one.outcome,
            "ops": one.operators if one.outcome == "graph" else 0,
            "pieces": one.graphs,
            "runs": one.runs,
            "failed_at": failed.get(one.id, ""),
            "why": one.why if one.outcome in ("graph", "empty") else "",
            "words": again(one.reasons),
        }
        for one in rec.compiles
        if one.during
    ]


def _said(text: str) -> str:
    """A place in words, such as 'programs.py:12 (step)' or 'In [1]:3 (f)'."""
    if not (parts := _PLACE.match(text)):
        return text
    file = "<ipython-input>" if parts[1].startswith("In [") else parts[1]
    return place(file, int(parts[2]))


def _collectives(rec: Record) -> list[dict[str, Any]]:
    seen: Counter[tuple[Any, ...]] = Counter()
    for one in rec.collectives:
        if one.name in POINT_TO_POINT:
            continue
        shape = one.shapes.split(", ")[0]
        sizes = tuple(int(n) for n in shape.split("x")) if shape else None
        group = one.group.partition(": ")[2]
        at = place(one.file, one.line) if one.file else None
        members = len(group.split(", ")) if group else None
        seen[one.name, members, sizes, one.dtype or None, at, one.compiled] += one.runs
    return [
        {"op": op, "group": group, "shape": shape and list(shape), "dtype": dtype, "place": at}
        | {"in_graph": in_graph, "count": count}
        for (op, group, shape, dtype, at, in_graph), count in seen.items()
    ]

"""What the compiler decided on each rank, compile by compile, and the first decision in which ranks part."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from oddrank.live.failure import name_all
from oddrank.look.compile_start import named
from oddrank.places import place
from oddrank.record import install
from oddrank.record.compiles import Try
from oddrank.record.guard_words import again
from oddrank.record.payloads import digest as digest_of_graph
from oddrank.record.source import Sources
from oddrank.stages import digest

__all__ = ["Decision", "graphs", "keep", "parting", "read"]

LIMIT = 64 << 20  # bytes of a file that are read
CODE = ("aot_forward", "aot_backward", "inductor", "inductor_backward")


@dataclass(frozen=True)
class Decision:
    """What one compile of one frame came to on a rank.

    Attributes:
        id: Dynamo's id, with the number of resets before it where there were any.
        name: The function and its place.
        again: The guards that failed, in words; '' for its first compile.
        graph: A hash of Dynamo's graph; '' where there is none yet.
        cached: 'hit' or 'miss' of the compile caches, '' where torch asked none.
        aot: A hash of AOTAutograd's graphs; '' where none was made.
        code: A hash of Inductor's code; '' where none was made.
        done: Whether the compile has ended.
    """

    id: str
    name: str = ""
    again: str = ""
    graph: str = ""
    cached: str = ""
    aot: str = ""
    code: str = ""
    done: bool = False

    @classmethod
    def of(cls, compile_: Try, sources: Sources) -> Decision:
        """Sum up one compile."""
        stages = {stage: digest(text, stage) for stage in CODE if (text := compile_.text(stage))}
        row, graph = named(compile_, sources), compile_.text("dynamo")
        return cls(
            id=f"{compile_.epoch}:{compile_.id}" if compile_.epoch else compile_.id,
            name=f"{row.name} ({place(row.file, row.line)})",
            again=again(row.reasons),
            graph=digest_of_graph(graph) if graph else "",
            cached={True: "hit", False: "miss", None: ""}[row.cached],
            aot="/".join(stages[stage] for stage in CODE[:2] if stage in stages),
            code="/".join(stages[stage] for stage in CODE[2:] if stage in stages),
            done=compile_.finished,
        )


def keep(folder: Path, rank: int) -> Callable[[], None]:
    """Write `decisions-RANK.jsonl` whenever a compile of this process begins or ends.

    Args:
        folder: Where the file goes.
        rank: This process.

    Returns:
        What writes all of them once more: a backward is compiled after its forward's compile has ended.
    """
    path, me, log, sources = folder / f"decisions-{rank}.jsonl", os.getpid(), install().compiles, Sources()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(compile_: Try) -> None:
        if os.getpid() == me:  # a script may fork
            os.write(file, json.dumps(asdict(Decision.of(compile_, sources))).encode() + b"\n")

    def everything() -> None:
        for compile_ in list(log.tries.values()):
            write(compile_)

    log.listeners.append(write)
    return everything


def read(folder: Path) -> dict[int, dict[str, Decision]]:
    """Read what ranks wrote to a folder: the decisions of each rank by id, in the order of their first line.

    A line that is none, such as the torn last one of a rank that was killed, is left out.
    """
    kinds = {each.name: bool if each.type == "bool" else str for each in fields(Decision)}
    found: dict[int, dict[str, Decision]] = {}
    for path in sorted(folder.glob("decisions-*.jsonl")):
        number = path.stem.partition("-")[2]
        if not number.isdecimal():
            continue
        mine = found.setdefault(int(number), {})
        with path.open("rb") as file:
            lines = file.read(LIMIT).splitlines()
        for line in lines:
            try:
                said = json.loads(line)
                if said.keys() == kinds.keys() and all(type(said[n]) is kind for n, kind in kinds.items()):
                    mine[said["id"]] = Decision(**said)
            except (ValueError, AttributeError, RecursionError):
                continue
    return dict(sorted(found.items()))


def graphs(ranks: Mapping[int, Mapping[str, Decision]]) -> dict[int, list[tuple[str, ...]]]:
    """The graphs that each rank compiled, and the guards for which it did so again, in order."""
    return {rank: [(one.name, one.again, one.graph) for one in mine.values()] for rank, mine in ranks.items()}


def parting(
    now: Mapping[int, Mapping[str, Decision]], before: Mapping[int, Mapping[str, Decision]], rank: int
) -> str:
    """Say at which decision a rank parts from the others, or from what it did itself where all went along.

    Args:
        now: The decisions of each rank.
        before: Those of a run in which nothing differed between ranks.
        rank: The rank that differs in something.

    Returns:
        The decision in one sentence; '' where the compiler decided alike.
    """
    mine = now.get(rank, {})
    others = [other for other in now if other != rank]
    if not others:
        return ""
    theirs, alone = now[others[0]], before.get(rank, {})
    rest = name_all(others)
    for id_ in dict.fromkeys([*theirs, *mine]):
        a, b = mine.get(id_), theirs.get(id_)
        known, peer = alone.get(id_), before.get(others[0], {}).get(id_)
        if (a is None) != (b is None) and (known is None) == (peer is None):
            one, who, not_who = (a, f"rank {rank}", rest) if a else (b, rest, f"rank {rank}")
            assert one is not None
            why = f" again: guard {one.again}" if one.again else ""
            return f"{'guard' if why else 'graph'}: {who} compiled {one.name}{why}; {not_who} did not"
        if a and b and (said := _apart(a, b, f"rank {rank}", rest, _same(known, peer))):
            return said
    for id_ in dict.fromkeys([*alone, *mine]):  # every rank went along: against the run before
        a, b = mine.get(id_), alone.get(id_)
        if a is None or b is None:
            one = a or b
            assert one is not None
            why = f" again: guard {one.again}" if one.again else ""
            did = "compiled only with the difference" if a else "not compiled with the difference"
            return f"{'guard' if why else 'graph'}: {one.name}{why}, {did}"
        if said := _apart(a, b, "with the difference", "without it", set(PARTS)):
            return said
    return ""


PARTS = {
    "again": "guard: {name} was compiled again {a}: {x}; {b}: {y}",
    "graph": "graph: Dynamo's graph of {name} is another {a} than {b}",
    "cached": "cache: {name} was a cache {x} {a} and a {y} {b}",
    "aot": "graph: AOTAutograd's graphs of {name} are others {a} than {b}",
    "code": "kernel: Inductor's code of {name} is another {a} than {b}, for the same graph",
}


def _same(a: Decision | None, b: Decision | None) -> set[str]:
    """The parts in which two decisions do not differ."""
    return {part for part in PARTS if a is None or b is None or getattr(a, part) == getattr(b, part)}


def _apart(a: Decision, b: Decision, one: str, other: str, parts: Sequence[str] | set[str]) -> str:
    """The first part in which two decisions differ, in words; a part that one of them does not have is none."""
    for part, said in PARTS.items():
        x, y = getattr(a, part), getattr(b, part)
        if part in parts and x != y and (x and y or part == "again"):
            at = {"a": one if one.startswith("with") else f"on {one}"}
            at["b"] = other if other.startswith("with") else f"on {other}"
            return said.format(name=a.name, x=x or "nothing", y=y or "nothing", **at)
    return ""

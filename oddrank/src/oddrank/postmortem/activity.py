"""What a rank did in the place of a collective: its end, a compile, a thread, a stack; the strongest evidence first."""

from __future__ import annotations

from oddrank.postmortem import compilation
from oddrank.postmortem.material import Material
from oddrank.postmortem.owners import ENDED_BY_LAUNCHER
from oddrank.postmortem.phrases import FOLLOWS, WAITS
from oddrank.postmortem.rows import Row, short
from oddrank.postmortem.sentences import Sentence, sentence
from oddrank.postmortem.stacks import WORKER

__all__ = ["activity", "deaths", "main_stacks", "occupation", "thread_end"]


def deaths(material: Material, rank: int) -> list[Row]:
    """The rows that say of what a rank died: its error, a signal, no memory; not what followed from others."""
    follows = material.of(rank, "gloo", "watchdog")
    found: list[Row] = []
    for row in material.of(rank, "error", "memory", "abort", "exit"):
        if row.kind == "error" and (FOLLOWS.search(row.key) or FOLLOWS.search(row.text)):
            continue
        if row.kind == "exit":
            signal = row.key.startswith("-") and row.key not in ENDED_BY_LAUNCHER
            if not signal or (row.key == "-6" and (follows or found)):
                continue
        if row.kind == "abort" and follows:
            continue
        found.append(row)
    return found


def activity(material: Material, rank: int, others: list[int], timeout_ms: int) -> list[Sentence]:
    """What a rank did in the place of a collective, as far as the material says it.

    Args:
        material: what was read.
        rank: whose activity.
        others: the ranks to compare its compiles with.
        timeout_ms: of the collective; 0 where that is not known.
    """
    found: list[Sentence] = []
    for row in deaths(material, rank):
        where = f" at {row.where}" if row.where else ""
        found.append(sentence(f"rank {rank} ended: {row.text}{where}", row))
    for row in material.of(rank, "gloo", "store")[:1]:
        waited = row.kind == "store" or WAITS.search(row.text)
        if row.where and (waited or "Connection" in row.text):
            what = "waited" if waited else "lost its connection"
            found.append(sentence(f"rank {rank} {what} at {row.where}: {short(row.text, 120)}", row))
    return found + occupation(material, rank, others, timeout_ms)


def occupation(material: Material, rank: int, others: list[int], timeout_ms: int) -> list[Sentence]:
    """In which compile, call or thread a rank was, apart from its end; arguments as for `activity`."""
    found = compilation.story(material, rank, others, timeout_ms)
    ends = (thread_end(row) for row in material.of(rank, "thread") if not FOLLOWS.search(row.text))
    threads = {end.text: end.evidence for end in ends}
    found += [Sentence(f"rank {rank}: {text}", cites) for text, cites in list(threads.items())[-2:]]
    if stacks := main_stacks(material, rank):
        row = stacks[-1]
        found.append(sentence(f"rank {rank} {_stand(row)}: {row.where or row.frames[0]}", row))
    for row in [row for row in material.of(rank, "stack") if row.text == WORKER][:2]:
        found.append(sentence(f"rank {rank} has {WORKER}, which is at {row.where or row.frames[0]}", row))
    return found


def _stand(stack: Row) -> str:
    """What the main thread of a rank did, by its stack."""
    if stack.text == "elsewhere":
        return "was in the program" if stack.where else "was in code that is not the program's"
    if stack.text.startswith("in "):
        return f"waits {stack.text}"
    words = {"compiling": "compiles", "exiting": "was at its exit"}
    return words.get(stack.text, stack.text.replace("waiting", "waits"))


def main_stacks(material: Material, rank: int) -> list[Row]:
    """The stacks of a rank's own process, none of a worker's."""
    return [row for row in material.of(rank, "stack") if row.text != WORKER]


def thread_end(row: Row) -> Sentence:
    """The sentence of an error that ended a thread."""
    return sentence(f"its thread {row.key} ended: {row.text}{row.at}", row)

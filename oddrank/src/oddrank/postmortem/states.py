"""What one rank did at the end: dead, compiling, waiting, elsewhere or unknown, each with its evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from oddrank.postmortem.material import ENDED_BY_LAUNCHER, Material
from oddrank.postmortem.rows import Row, is_own, short
from oddrank.postmortem.stacks import WORKS

__all__ = ["Said", "State", "compiles", "deaths", "doing", "during", "open_compile", "seconds", "states"]

# errors that follow from the fault of another rank or of the launcher
FOLLOWS = re.compile(
    r"DistBackendError|ChildFailedError|SignalException|KeyboardInterrupt|SystemExit|DistNetworkError|DistStoreError"
    r"|NCCL|gloo|TCPStore|Broken pipe|monitoredBarrier|ProcessRaisedException|ProcessExitedException|wait timeout"
    r"|connectFullMesh"
)
PLACES = (
    "new_group",
    "init_process_group",
    "init_device_mesh",
    "split_group",
    "monitored_barrier",
    "barrier",
)
STORE = re.compile(r"DistStoreError|wait timeout after|[Tt]imed out .*store")
WAITS = re.compile(r"Timed out waiting|Watchdog caught|Operation timed out|failure detected by watchdog")


@dataclass(frozen=True, slots=True)
class Said:
    """One sentence, and the places of its evidence."""

    text: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text + (f"  [{', '.join(self.evidence[:4])}]" if self.evidence else "")


@dataclass(frozen=True, slots=True)
class State:
    """What a rank did at the end: `name` is dead, compiling, waiting, cut off, elsewhere, ended or unknown."""

    name: str
    said: Said


def seconds(one: str, other: str) -> float | None:
    """The time between two stamps of torch's logs, which have no year; None where one is of another form.

    >>> seconds("1128 03:04:14.850000", "1128 03:04:20.10")
    5.25
    """
    try:
        begin, end = (datetime.strptime(f"2024{text}", "%Y%m%d %H:%M:%S.%f") for text in (one, other))
    except ValueError:
        return None
    return (end - begin).total_seconds()


def deaths(material: Material, rank: int) -> list[Row]:
    """The rows that say of what a rank died: its error, a signal, no memory; not what followed from others."""
    rows = material.of(rank, "error", "memory", "abort", "exit")
    follows = material.of(rank, "gloo", "watchdog")
    found: list[Row] = []
    for row in rows:
        if row.kind == "error" and (FOLLOWS.search(row.key) or FOLLOWS.search(row.text)):
            continue
        if row.kind == "exit":
            number = row.key
            if (
                number in ENDED_BY_LAUNCHER
                or not number.startswith("-")
                or (number == "-6" and (follows or found))
            ):
                continue
        if row.kind == "abort" and follows:
            continue
        found.append(row)
    return found


def compiles(material: Material, rank: int) -> list[tuple[Row, Row | None]]:
    """The compiles of a rank, each with its end, None where the material has none."""
    by_file: dict[str, list[Row]] = {}
    for row in material.of(rank, "begin", "traced", "end"):
        by_file.setdefault(row.file, []).append(row)
    found: list[tuple[Row, Row | None]] = []
    for rows in by_file.values():
        begun: dict[str, Row] = {}
        for row in rows:
            if row.kind == "begin":
                begun.setdefault(row.key, row)
            elif row.kind == "end" and row.key in begun:
                found.append((begun.pop(row.key), row))
        if rows[-1].kind == "begin":  # an earlier one without an end was given up
            found.append((begun[rows[-1].key], None))
    return found


def open_compile(material: Material, rank: int) -> Row | None:
    """The begin of the compile in which the log of a rank ends; of several sources the one that has a line."""
    held = [(begin, end) for begin, end in compiles(material, rank)]
    pending = [begin for begin, end in held if end is None]
    if not pending:
        return None
    ended = {begin.key for begin, end in held if end is not None}
    pending = [
        begin for begin in pending if begin.key not in ended
    ]  # one source may end earlier than another
    return max(pending, key=lambda row: any(is_own(frame.file) for frame in row.frames), default=None)


def states(material: Material, ranks: list[int], waiting: dict[int, Said]) -> dict[int, State]:
    """What each rank did at the end.

    Args:
        material: all that was read.
        ranks: of the job.
        waiting: for ranks of which the flight records say that they wait, the sentence.
    """
    return {rank: _state(material, rank, waiting.get(rank)) for rank in ranks}


def _state(material: Material, rank: int, waits: Said | None) -> State:
    if died := deaths(material, rank):
        row = died[-1]
        where = f", at {row.where}" if row.where else ""
        return State("dead", Said(f"{row.text}{where}", (row.cite,)))
    begun, stack = open_compile(material, rank), next(reversed(_stacks(material, rank)), None)
    if begun and not waits:
        return State("compiling", _compiling(begun))
    if stack and stack.text == "compiling" and not waits:
        return State(
            "compiling", Said(f"its stack is in the compiler, called at {stack.where}", (stack.cite,))
        )
    if waits:
        return State("waiting", waits)
    errors = [row for row in material.of(rank, "error") if STORE.search(row.text)]
    for row in [*material.of(rank, "store"), *errors]:
        what = row.key if row.kind == "store" else row.text[:160]
        at = f", at {row.where}" if row.where else ""
        return State("waiting", Said(f"{_in_store(row)}: {what}{at}", (row.cite,)))
    for row in sorted(material.of(rank, "named"), key=lambda row: not row.where):
        at = f", at {row.where}" if row.where else ""
        return State("waiting", Said(f"{row.text[:160]}{at}", (row.cite,)))
    for row in material.of(rank, "gloo", "watchdog"):
        if WAITS.search(row.text):
            where = f", at {row.where}" if row.where else ""
            return State("waiting", Said(f"{row.text[:160]}{where}", (row.cite,)))
    for row in reversed(material.of(rank, "gloo")):
        where = f", at {row.where}" if row.where else ""
        return State(
            "cut off" if "Connection" in row.text else "dead", Said(f"{row.text[:160]}{where}", (row.cite,))
        )
    if stack and stack.text.startswith("in "):
        return State("waiting", Said(f"its stack is {stack.text}, called at {stack.where}", (stack.cite,)))
    if stack:
        at = f"is at {stack.where or stack.frames[0]}"
        at += f", {stack.text}" if stack.text.startswith("waiting") else ""
        return State("elsewhere", Said(f"its stack {at}", (stack.cite,)))
    if threads := material.of(rank, "thread"):
        return State("elsewhere", _thread(threads[-1]))
    if exits := material.of(rank, "exit"):
        by = "the launcher ended it: " if exits[-1].key in ENDED_BY_LAUNCHER else ""
        return State("ended", Said(by + exits[-1].text, (exits[-1].cite,)))
    record = material.dumps.get(rank) or material.older.get(rank)
    if record or rank in material.last:
        cite, time = material.last.get(rank, (record.file if record else "", ""))
        return State(
            "unknown", Said(f"what is here ends {f'at {time}' if time else 'without a fault'}", (cite,))
        )
    return State("unknown", Said("no file is of this rank, or none says what it did"))


def _in_store(row: Row) -> str:
    inside = next((frame.name for frame in row.frames if frame.name in PLACES), "")
    return f"waited in {inside} for a key of the store" if inside else "waited for a key of the store"


def _thread(row: Row) -> Said:
    at = f", at {row.where}" if row.where else ""
    return Said(f"its thread {row.key} ended: {row.text}{at}", (row.cite,))


def _compiling(begun: Row) -> Said:
    at = f" ({begun.where})" if begun.where else ""
    since = f" since {begun.time}" if begun.time else ""
    return Said(f"compiling [{begun.key}]{at}{since}; the compile has no end in what is here", (begun.cite,))


def doing(material: Material, rank: int, others: list[int], timeout_ms: int) -> list[Said]:
    """What a rank did in the place of a collective, as far as the material says it; the strongest evidence first."""
    found: list[Said] = []
    for row in deaths(material, rank):
        where = f" at {row.where}" if row.where else ""
        found.append(Said(f"rank {rank} ended: {row.text}{where}", (row.cite,)))
    for row in material.of(rank, "gloo", "store")[:1]:
        waited = row.kind == "store" or WAITS.search(row.text)
        if row.where and (waited or "Connection" in row.text):
            what = "waited" if waited else "lost its connection"
            found.append(Said(f"rank {rank} {what} at {row.where}: {short(row.text, 120)}", (row.cite,)))
    return found + during(material, rank, others, timeout_ms)


def during(material: Material, rank: int, others: list[int], timeout_ms: int) -> list[Said]:
    """In which compile, call or thread a rank was, apart from its end."""
    found = _compile_story(material, rank, others, timeout_ms)
    threads = {_thread(row).text: row for row in material.of(rank, "thread") if not FOLLOWS.search(row.text)}
    found += [Said(f"rank {rank}: {text}", (row.cite,)) for text, row in list(threads.items())[-2:]]
    if stacks := _stacks(material, rank):
        row = stacks[-1]
        what = {"compiling": "compiles", "exiting": "was at its exit", "elsewhere": "was in the program"}
        said = what.get(row.text, row.text.replace("waiting", "waits"))
        said = said if row.where or row.text != "elsewhere" else "was in code that is not the program's"
        said = f"waits {said}" if said.startswith("in ") else said
        found.append(Said(f"rank {rank} {said}: {row.where or row.frames[0]}", (row.cite,)))
    for row in [row for row in material.of(rank, "stack") if row.text == WORKS][:2]:
        found.append(Said(f"rank {rank} has {WORKS}, which is at {row.where or row.frames[0]}", (row.cite,)))
    return found


def _stacks(material: Material, rank: int) -> list[Row]:
    return [row for row in material.of(rank, "stack") if row.text != WORKS]


def _compile_story(material: Material, rank: int, others: list[int], timeout_ms: int) -> list[Said]:
    found: list[Said] = []
    told = None
    if begun := open_compile(material, rank):
        found.append(Said(f"rank {rank} was {_compiling(begun).text}", (begun.cite,)))
        told = begun
    else:
        for begin, end in compiles(material, rank):
            took = seconds(begin.time, end.time) if end else None
            if took and timeout_ms and took * 1000 >= timeout_ms:
                said = f"rank {rank} compiled [{begin.key}] {begin.where} for {took:.1f} s"
                said += f", and the timeout is {timeout_ms / 1000:g} s"
                found.append(Said(said, (begin.cite, end.cite if end else "")))
                told = begin
    if told is None:
        return found + _alone(material, rank, others)
    if guards := [row for row in material.of(rank, "recompile") if row.key == told.key]:
        row = guards[-1]
        found.append(Said(f"it compiled again because a guard failed: {row.text}", (row.cite,)))
        alone = [r for r in others if material.of(r, "begin") and not _has(material, r, told.key)]
        if alone:
            said = f"ranks {spell(alone)} did not compile [{told.key}] at all, in what is here"
            found.append(Said(said, tuple(material.of(r, "begin")[-1].cite for r in alone[:3])))
    else:
        for other in others:
            pair = next((p for p in compiles(material, other) if p[0].key == told.key and p[1]), None)
            if pair and pair[1] and (took := seconds(pair[0].time, pair[1].time)) is not None:
                said = f"rank {other} was through with [{told.key}] in {took:.1f} s"
                found.append(Said(said, (pair[0].cite, pair[1].cite)))
                break
    return found


def _alone(material: Material, rank: int, others: list[int]) -> list[Said]:
    """The last compile of a rank, where no other rank that has a log of compiles made it."""
    begun = compiles(material, rank)
    known = [other for other in others if material.of(other, "begin")]
    if not begun or not known or any(_has(material, other, begun[-1][0].key) for other in known):
        return []
    row = begun[-1][0]
    said = f"rank {rank}'s last compile is [{row.key}] {row.where}, which {'rank' if len(known) == 1 else 'ranks'}"
    cites = (row.cite, *(material.of(other, "begin")[-1].cite for other in known[:3]))
    return [Said(f"{said} {spell(known)} did not make, in what is here", cites)]


def _has(material: Material, rank: int, key: str) -> bool:
    return any(row.key == key for row in material.of(rank, "begin"))


def spell(ranks: list[int]) -> str:
    """Ranks in words, runs folded.

    >>> spell([0, 1, 2, 5]), spell([3])
    ('0 to 2, 5', '3')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)

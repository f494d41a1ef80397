"""What the compiler met in a run, each joined with its compile: graph breaks, and functions compiled again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oddrank.places import is_library, place, rewrite
from oddrank.record import Compile, Mark, Tables
from oddrank.record.guard_words import bare
from oddrank.record.payloads import resumed
from oddrank.record.source import Sources

__all__ = ["DECORATES", "LIMIT", "Again", "Break", "Phase", "again_of", "breaks_of", "phases"]

LIMIT = "recompile limit"
DECORATES = "it decorates"  # in place of a guard: a decorator's code, compiled for another function
Frame = tuple[str, int, str]
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


@dataclass(frozen=True)
class Break:
    """A graph break, or a frame that was given up.

    Args:
        rank: The rank.
        compile: The id of the compile that met it.
        kind: 'break' or 'gave-up'.
        name: The function that was compiled.
        reason: What happened, in a line.
        place: The program's innermost line that led to it; without one, the innermost line.
        libraries: The lines in libraries behind that one, the innermost last.
        explanation, hints, report: Torch's.
        executed: Runs that met it in the recorded steps.
    """

    rank: int
    compile: str
    kind: str
    name: str
    reason: str
    place: str
    libraries: tuple[str, ...]
    explanation: str
    hints: tuple[str, ...]
    report: str
    executed: int


@dataclass(frozen=True)
class Again:
    """A function that was compiled again.

    Args:
        rank: The rank.
        compile: The id of the compile.
        name: The function.
        reason: The guard of the newest earlier code that failed.
        place: Where the guarded value is used, or the function where torch does not say.
    """

    rank: int
    compile: str
    name: str
    reason: str
    place: str


@dataclass(frozen=True)
class Phase:
    """The compile of a function, or of its backward, in seconds: in all, of Dynamo, of the backend."""

    rank: int
    name: str
    place: str
    seconds: float
    dynamo: float
    backend: float


def breaks_of(tables: Tables) -> list[Break]:
    """Every graph break and every frame given up, in the order of the compiles that met it."""
    found = []
    frames = {(mark.rank, mark.compile): mark for mark in tables.marks if mark.kind == "def"}
    for row, mark, compile_ in tables.met():
        at, libraries = _stands(mark, compile_)
        ended = frames.get((mark.rank, mark.compile), mark)  # of a frame given up: why it cannot be resumed
        hints = tuple(map(rewrite, mark.hints))
        told = (rewrite(ended.text or mark.text), hints, rewrite(mark.report), row.executed or 0)
        said = (row.frame, rewrite(row.reason), at, libraries, *told)
        found.append(Break(row.rank, row.compile, row.kind, *said))
    return found


def _stands(mark: Mark, compile_: Compile) -> tuple[str, tuple[str, ...]]:
    """The program's innermost line on the way to a break, and those in libraries behind it."""
    stack = [*compile_.chain, (mark.file, mark.line, mark.func), *mark.chain]
    own = max((i for i, frame in enumerate(stack) if not is_library(frame[0])), default=-1)
    behind = tuple(map(_spot, stack[own + 1 :]))
    return _spot(stack[own]), behind


def again_of(tables: Tables) -> list[Again]:
    """Every recompile, in the order of the compiles."""
    sources = Sources()
    found: list[Again] = []
    earlier: dict[tuple[int, str, int, int], list[Compile]] = {}  # of the same code
    for c in tables.compiles:
        before = earlier.setdefault((c.rank, c.file, c.line, c.resume), [])
        if c.again and c.during:
            first = bool(before and c.owner) and all(one.owner not in ("", c.owner) for one in before)
            row, failed = replace(c, owner="") if first else c, _failed(c, before)
            reason = f"{DECORATES} {c.owner}" if first else failed or c.why
            at = "" if first else _used(failed or c.reasons[0], sources)
            found.append(Again(c.rank, c.id, row.name, rewrite(bare(reason)), at or row.place))
        before.append(c)
    return found


def _failed(row: Compile, before: Sequence[Compile]) -> str:
    """Of a decorator's code: the guard of the newest code for the same function; '' where that is not known."""
    if row.owner and len(row.reasons) == len(before):
        for one, reason in zip(reversed(before), row.reasons, strict=True):
            if one.owner == row.owner:
                return reason
    return ""


def _used(reason: str, sources: Sources) -> str:
    """The program's innermost line that uses a guarded value; '' where torch does not say."""
    frames = [(file, int(line), name) for file, line, name in _FRAME.findall(reason)]
    own = [frame for frame in frames if not is_library(frame[0])] or frames
    if not own:
        return ""
    file, line, name = own[-1]
    return _spot((file, line, sources.qualified(file, line, resumed(name)[0])))


def _spot(frame: Sequence) -> str:
    file, line, name = frame
    return place(file, line or None, "" if name == "<module>" else name)


def phases(compile_: Compile) -> list[Phase]:
    """The compile of a function, and of its backward where there was one."""
    name, at, seconds, backend = compile_.name, compile_.place, compile_.seconds, compile_.backend_s
    found = [Phase(compile_.rank, name, at, seconds, seconds - backend, backend)]
    if later := compile_.backward_s:
        found.append(Phase(compile_.rank, f"{name}, backward", at, later, 0.0, later))
    return found

"""The program's line that called a collective. Torch's trace has the line inside torch that it came from.

Exact where the compiler told it in the running process; otherwise worked out from the text of the source, between the
lines of the operators before and after it. That is wrong where both branches of an `if` call the same collective.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from oddrank.places import is_library
from oddrank.record.nodes import COLLECTIVE
from oddrank.record.source import Function, Sources
from oddrank.record.tables import Compile, Mark

__all__ = ["move", "place"]

Spot = tuple[str, int, str]  # file, line, function

_IN_TORCH = re.compile(r"torch[/\\]distributed")
_LAYERS = re.compile(r"torch[/\\]nn[/\\]")  # functions in Python, such as F.rms_norm, that Dynamo traces into
_SUFFIX = re.compile(r"_(into_tensor|tensor|single|coalesced|out|inplace)(_out|_coalesced)?$")


def place(row: Compile, marks: Sequence[Mark], sources: Sources, told: Sequence[Spot] | None = None) -> None:
    """Move the marks of one compile's collectives from torch's line to the program's; `via` keeps torch's.

    Args:
        row: The compile.
        marks: Its operators and collectives of all stages, in their order.
        sources: The text of the program's files.
        told: The callers of the collectives of Dynamo's graph in order, where the compiler told them.
    """
    if is_library(row.file):
        return
    moved = _dynamo([mark for mark in marks if mark.stage == "dynamo"], row, sources, told)
    if not moved:
        return
    for stage in ("forward", "backward"):
        ops = [mark for mark in marks if mark.stage == stage]
        seen: dict[tuple[str, int], int] = {}
        for mark in reversed(ops) if stage == "backward" else ops:
            spots = moved.get((mark.file, mark.line))
            if not spots:
                continue
            if stage == "backward":
                spots = spots[::-1]
            at = mark.file, mark.line
            if COLLECTIVE.search(mark.name):
                seen[at] = seen.get(at, -1) + 1
            spot, exact = spots[min(max(seen.get(at, 0), 0), len(spots) - 1)]
            _move(mark, spot, exact)


def move(nodes: Mapping[tuple[str, str], Mark], called: Mapping[str, Spot]) -> None:
    """Move operators that a library's function made to the program's line that called it, as the compiler told it.

    Args:
        nodes: The operators by stage and name.
        called: The program's lines, by the name of Dynamo's operator. A lowered one has its line where all operators of
            that place in the library come from one line of the program.
    """
    spots: dict[tuple[str, int], set[Spot]] = {}
    for name, spot in called.items():
        mark = nodes.get(("dynamo", name))
        if mark is not None and is_library(mark.file):
            spots.setdefault((mark.file, mark.line), set()).add(spot)
            _move(mark, spot, True)
    for (stage, _), mark in nodes.items():
        known = spots.get((mark.file, mark.line), set())
        if stage != "dynamo" and len(known) == 1:
            _move(mark, next(iter(known)), True)


def _dynamo(
    marks: Sequence[Mark], row: Compile, sources: Sources, told: Sequence[Spot] | None
) -> dict[tuple[str, int], list[tuple[Spot, bool]]]:
    """Place those of Dynamo's graph; returns the program's lines by the line inside torch, in order."""
    collectives = [mark for mark in marks if mark.kind == "collective"]
    if not collectives and not any(_LAYERS.search(mark.file) for mark in marks):
        return {}
    of_library = functools.cache(is_library)
    after: list[Mark | None] = [None]  # the program's next operator, from the last mark to the first
    for mark in reversed(marks):
        after.append(after[-1] if of_library(mark.file) else mark)
    after.reverse()
    exact = told is not None and len(told) == len(collectives)
    given = iter(told if exact and told is not None else ())
    moved: dict[tuple[str, int], list[tuple[Spot, bool]]] = {}
    search = _Search(row, sources)
    user, last = None, None
    for i, mark in enumerate(marks):
        if mark.kind == "collective" and exact:
            last = next(given)
            if not of_library(mark.file):
                continue
        elif not of_library(mark.file):
            user, last = mark, None
            continue
        elif mark.kind == "collective":
            last = search.caller(mark.name, user, after[i])
        elif _LAYERS.search(mark.file) and told is None:
            called = mark.name.rpartition(".")[2]
            if spot := search.caller(called, user, after[i]) if called else None:
                moved.setdefault((mark.file, mark.line), []).append((spot, False))
                _move(mark, spot, False)
            continue
        if last and _IN_TORCH.search(mark.file):
            if mark.kind == "op":
                moved.setdefault((mark.file, mark.line), []).append((last, exact))
            _move(mark, last, exact)
    return moved


def _move(mark: Mark, spot: Spot, exact: bool) -> None:
    mark.via = f"{mark.file}:{mark.line}"
    mark.file, mark.line, mark.func = spot
    mark.exact = exact


class _Search:
    """Looks for the line that calls something of a collective's name, each call once."""

    def __init__(self, row: Compile, sources: Sources) -> None:
        self._row, self._sources = row, sources
        self._seen: set[tuple[str, int, str]] = set()

    def caller(self, name: str, user: Mark | None, after: Mark | None) -> Spot | None:
        """The line between the operators around it: in the function of the operator before it, which may be inlined,
        in the frame's own, or in a helper of the same file that this calls."""
        row, inside = self._row, self._sources.inside
        mine, was = inside(row.file, row.line), inside(user.file, user.line) if user else None
        places: list[tuple[str, Function, int, str]] = []
        if user and was and was != mine:
            places.append((user.file, was, user.line, user.func))
        if mine:
            low = user.line if user and was == mine and user.file == row.file else (row.resume or row.line)
            places.append((row.file, mine, low, row.func))
        near: list[tuple[int, str]] = []
        for file, function, low, func in places:
            high = function.last
            if after and after.file == file and low <= after.line <= high:
                high = after.line
            near = [
                call for call in function.calls if low <= call[0] <= high and (file, *call) not in self._seen
            ]
            # the call at the line that a frame resumes after is over
            for line, called in sorted(near, key=lambda call: (call[0] == row.resume, call[0])):
                if _calls(called, name):
                    self._seen.add((file, line, called))
                    return file, line, func
        helpers = {one.name.rpartition(".")[2]: one for one in self._sources.functions(row.file)}
        for line, called in near:
            helper = helpers.get(called)
            if helper is None or helper == mine or line == row.resume:
                continue
            for inner, calls in helper.calls:
                if _calls(calls, name):
                    self._seen.add((row.file, line, called))
                    return row.file, inner, called
        return None


def _calls(called: str, collective: str) -> bool:
    short = _SUFFIX.sub("", collective.rstrip("_"))
    return called.startswith(short) or (short == "all_to_all" and called.startswith("all_to_all"))

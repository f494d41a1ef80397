"""Layers of one class share the code that was compiled for one of them: all break where only that one has to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from oddrank.look.breaks import breaks_of
from oddrank.record import Compile, Tables

__all__ = ["Split", "splits"]

Key = tuple[int, str]  # a rank, and the id of a compile
Function = tuple[str, str, int]  # its file and name, and where it goes on
TAIL = 3  # callers by which a function is known to be called by one frame
MOST = 4  # calls that are named


@dataclass(frozen=True)
class Split:
    """Functions that run in pieces, also in calls that do not run what torch breaks at.

    Args:
        rank: The rank.
        names: The functions, the outermost first.
        reason, place: Of the break.
        calls: Calls of each in a step.
        broken: Of these, those that run in pieces for the break.
        others: Of `broken`, those that run what torch breaks at, or of which that is not known; the first call is 1.
    """

    rank: int
    names: tuple[str, ...]
    reason: str
    place: str
    calls: int
    broken: int
    others: tuple[int, ...]

    def said(self, unit: str) -> str:
        """The sentences; `unit` is what was marked: 'step' or 'forward'."""
        run = "run" if len(self.names) > 1 else "runs"
        few = f"{self.broken} of {self.calls}" if self.broken < self.calls else f"all {self.calls}"
        spared = self.broken - len(self.others)
        calls = "these calls do" if spared > 1 else "these calls does"
        but = (
            f" (all but the {_listed([_ordinal(n) for n in self.others])})"
            if len(self.others) <= MOST
            else ""
        )
        return (
            f"{_listed(self.names)} {run} in pieces for this break in {few} calls of a {unit}."
            f" {spared} of {calls} not run what torch breaks at{but}."
            f" {'They share' if spared > 1 else 'It shares'} the code that was compiled for a call that does"
        )

    @property
    def fix(self) -> str:
        """What to do where the break has to stay; '' for functions that are no layer's."""
        layer = self.names[0].endswith(".forward")
        return (
            "where only some layers of a class run this, give those a class of their own (a subclass is enough)"
            if layer
            else ""
        )


def splits(record: Tables) -> list[Split]:
    """The outermost functions of which, in every recorded step, some calls run what torch breaks at and others do not.

    A call runs no such thing where code without a break came next, of the function in which the break stands. Where
    torch breaks at a call that it does not trace, another function that it compiled was called there.
    The numbers of these calls are the same in all steps, so that nothing is said of a layer that breaks now and then.
    """
    ran: dict[tuple[int, int], list[tuple[float, str]]] = {}
    for one in record.ranges:
        if one.kind == "region" and one.thread == "main" and one.forward >= 0:
            ran.setdefault((one.rank, one.forward), []).append((one.start_us, one.compile))
    code = _Code(record)
    steps: dict[int, list[list[Split]]] = {}
    for (rank, _), regions in ran.items():
        order = [(rank, id_) for _, id_ in sorted(regions, key=lambda region: region[0])]
        steps.setdefault(rank, []).append(code.of_step(order))
    names: dict[Split, dict[str, None]] = {}  # functions that are split in the same calls are said together
    for first, *rest in steps.values():
        for split in first:
            if all(split in other for other in rest):
                names.setdefault(replace(split, names=()), {}).update(dict.fromkeys(split.names))
    found: dict[tuple[int, str, str], Split] = {}
    for split, mine in names.items():  # the outermost come first
        found.setdefault((split.rank, split.reason, split.place), replace(split, names=tuple(mine)))
    return list(found.values())


class _Code:
    """What was compiled, and which of it breaks where."""

    def __init__(self, record: Tables) -> None:
        self.compiles = {(row.rank, row.id): row for row in record.compiles}
        self.marks = {(mark.rank, mark.compile): mark for mark in record.marks if mark.kind == "break"}
        self.why = {
            (one.rank, one.compile): (one.reason, one.place)
            for one in breaks_of(record)
            if one.kind == "break" and (one.rank, one.compile) in self.marks
        }

    def of_step(self, order: Sequence[Key]) -> list[Split]:
        """The functions that are split in a step of one rank, by the regions that it ran in their order."""
        calls: Counter[Function] = Counter()
        met: dict[tuple[Function, tuple[str, str]], dict[int, bool]] = {}
        for at, key in enumerate(order):
            row = self.compiles.get(key)
            if row is None:
                continue
            function = row.file, row.called, row.resume
            calls[function] += 1
            if key in self.why:
                each = met.setdefault((function, self.why[key]), {})
                each[calls[function]] = self._spared(order[at:])
        found = []
        for (function, why), each in met.items():
            others = tuple(number for number, spared in each.items() if not spared)
            if 0 < len(others) < len(each):
                found.append(Split(order[0][0], (function[1],), *why, calls[function], len(each), others))
        return found

    def _spared(self, order: Sequence[Key]) -> bool:
        """Whether the call that runs the first of these regions is known not to meet the break of its code."""
        for at, (here, key) in enumerate(pairwise(order)):
            row, mark = self.compiles.get(key), self.marks[here]
            if row is None or row.resume:
                break
            if not mark.chain:  # the call that torch does not trace stands here
                disabled = "torch.compiler.disable" in mark.name
                return disabled and _whole(row) and _called_by(row, self.compiles[here])
            if _whole(row):
                inner = {(file, func) for file, _, func in mark.chain}
                return (row.file, row.func) in inner and not self._later(order, at + 2, inner)
            # torch may leave a caller out of the chain: that it is the same break is enough
            if self.why.get(key) != self.why[here]:
                break
        return False

    def _later(self, order: Sequence[Key], at: int, inner: set[tuple[str, str]]) -> bool:
        """Whether the call that runs the first region meets its break from `at` on, in one of the functions inside."""
        first = self.compiles[order[0]]
        for key in order[at:]:
            row = self.compiles.get(key)
            if row is None:
                continue
            if (row.file, row.called) == (first.file, first.called):  # its rest, or another call of it
                break
            if (row.file, row.func) in inner and self.why.get(key) == self.why[order[0]]:
                return True
        return False


def _whole(row: Compile) -> bool:
    return not row.broke and row.outcome in ("graph", "empty")


def _called_by(row: Compile, caller: Compile) -> bool:
    """Whether a function was compiled when the frame of `caller` itself called it, not a function in between.

    In some versions of torch both lack the same number of callers.
    """
    return row.chain[:-1][-TAIL:] == caller.chain[-TAIL:]


def _ordinal(number: int) -> str:
    """A number as a place in a row.

    >>> [_ordinal(number) for number in (1, 2, 4, 11, 22)]
    ['1st', '2nd', '4th', '11th', '22nd']
    """
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

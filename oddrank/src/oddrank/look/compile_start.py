"""What is known of a compile as soon as it begins, as plain data: a process that is killed meanwhile says no more."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from oddrank.look.rows import value
from oddrank.places import place
from oddrank.record import Compile, Tables
from oddrank.record.compiles import Compiles, Try
from oddrank.record.guard_words import again
from oddrank.record.source import Sources

__all__ = ["described", "facts", "named", "of_facts", "tables"]

MOST_TEXT = 2000  # characters of a text that are kept
MOST_GUARDS = 8  # failed guards that are kept, one of each code that was there already; newest first
MOST_CALLERS = 40  # innermost ones
STACK = "User code traceback:"
KEPT = {"epoch": int, "break_text": str, "failure": tuple[str, str, str, int]}


def facts(compile_: Try) -> dict[str, Any]:
    """Return what `of_facts` reads, for JSON: the row of a compile, without graph, guards and code.

    Args:
        compile_: A compile that has begun.
    """
    row, (kind, reason, *at) = compile_.row, compile_.failure
    kept = replace(row, id=compile_.id, chain=row.chain[-MOST_CALLERS:])
    kept.why = row.why[:MOST_TEXT]
    kept.reasons = tuple(reason[:MOST_TEXT] for reason in row.reasons[:MOST_GUARDS])
    said = {"epoch": compile_.epoch, "break_text": _shortened(compile_.break_text)}
    return {
        "row": {one.name: getattr(kept, one.name) for one in fields(kept)},
        **said,
        "failure": [kind, reason[:MOST_TEXT], *at],
    }


def _shortened(report: str) -> str:
    """The first part of what torch says of a break, and the last of its stack, where the program's line stands."""
    said, mark, stack = report.partition(STACK)
    if len(stack) > MOST_TEXT:
        cut = stack[-MOST_TEXT:]
        stack = "\n" + cut[max(cut.find('  File "'), 0) :]
    return f"{said[:MOST_TEXT]}{mark}{stack}"


def of_facts(said: Any) -> Try:
    """Return the compile that `facts` described.

    Raises:
        ValueError: These are no facts of a compile.

    >>> of_facts(facts(Try("1/0", 0, Compile(0, "1/0", func="step")))).finished
    False
    """
    known = typing.get_type_hints(Compile)
    if not isinstance(said, dict) or said.keys() != {"row", *KEPT}:
        raise ValueError("no facts of a compile")
    if not isinstance(said["row"], dict) or said["row"].keys() != known.keys():
        raise ValueError("no row of a compile")
    row = Compile(**{name: value(said["row"][name], kind, name) for name, kind in known.items()})
    given = {name: value(said[name], kind, name) for name, kind in KEPT.items()}
    over = row.outcome != "unfinished"
    return Try(
        row.id, row=row, begun=True, finished=over, has_code=row.outcome in ("graph", "empty"), **given
    )


def tables(compiles: Sequence[Try], rank: int) -> Tables:
    """The tables of compiles: their rows, with what went wrong at which line.

    Args:
        compiles: Those of one rank, oldest first.
        rank: The rank.
    """
    log = Compiles(rank, Sources())
    log.tries.update({(one.epoch, one.id): one for one in compiles})
    return log.tables(log.chosen())


def named(compile_: Try, sources: Sources) -> Compile:
    """The row of a compile that may not have ended, with the function's class in its name."""
    row = compile_.row
    return replace(row, func=sources.qualified(row.file, row.resume or row.line, row.func))


def described(compile_: Try, sources: Sources) -> str:
    """Name a compile's function, why it is compiled again, and its place.

    Args:
        compile_: The compile.
        sources: The text of the program's files.

    >>> row = Compile(0, "1/1", "train.py", 7, "step", reasons=("x == 3",))
    >>> described(Try("1/1", 0, row), Sources())
    'step again: `x` changes (it was 3) (train.py:7)'
    """
    row = named(compile_, sources)
    guard = again(row.reasons)
    return f"{row.name}{f' again: {guard}' if guard else ''} ({place(row.file, row.line)})"

"""What is known of a compile as soon as it begins, as plain data: a process that is killed meanwhile says no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit import places
from labkit.records import reasons
from labkit.records.compile_log import Compile, CompileLog
from labkit.records.guard_words import form, words
from labkit.records.names import Names
from labkit.records.recorder import build_record

__all__ = ["again", "described", "facts", "of_facts", "tables"]

MOST_TEXT = 2000  # characters of a text that are kept
MOST_GUARDS = 8  # failed guards that are kept, one of each code that was there already; newest first
KEPT: dict[str, type] = {
    **{"id": str, "epoch": int, "started": float, "finished": bool, "has_code": bool},
    **{"co_name": str, "filename": str, "line": int, "ops": int, "collectives": int, "pieces": int},
    **{
        "break_text": str,
        "failure": str,
        "error": str,
        "reasons": list,
        "failed_at": list,
        "seconds": float,
        "backend_s": float,
    },
}


def facts(compile_: Compile) -> dict[str, Any]:
    """Return what `of_facts` reads, for JSON: what is known so far, without graph, guards and code.

    Args:
        compile_: A compile that has begun.
    """
    said = {name: getattr(compile_, name) for name in KEPT}
    said |= {"break_text": _shortened(compile_.break_text), "failure": compile_.failure[:MOST_TEXT]}
    said["reasons"] = [reason[:MOST_TEXT] for reason in said["reasons"][:MOST_GUARDS]]
    return {name: value for name, value in said.items() if value not in (None, "", 0, [], ("", 0))}


def _shortened(report: str) -> str:
    """The first part of what torch says of a break, and the last of its stack, where the program's line stands."""
    said, mark, stack = report.partition(reasons.CODE_STACK)
    if len(stack) > MOST_TEXT:
        cut = stack[-MOST_TEXT:]
        stack = "\n" + cut[max(cut.find('  File "'), 0) :]
    return f"{said[:MOST_TEXT]}{mark}{stack}"


def of_facts(said: Any) -> Compile:
    """Return the compile that `facts` described.

    Raises:
        ValueError: These are no facts of a compile.

    >>> of_facts({"id": "1/0", "epoch": 0, "started": 2.0}).finished
    False
    """
    if not isinstance(said, dict) or not {"id", "started"} <= set(said):
        raise ValueError("no facts of a compile")
    for name, value in said.items():
        kind = KEPT.get(name)
        if kind is None or not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"no facts of a compile: {name} is {value!r}")
    file, line = [*said.get("failed_at", []), "", 0][:2]
    given = {"epoch": 0, **said, "begun": True, "failed_at": (str(file), int(line))}
    return Compile(**given | {"reasons": [str(reason) for reason in said.get("reasons", [])]})


def described(compile_: Compile, names: Names) -> str:
    """Name a compile's function, why it is compiled again, and its place.

    Args:
        compile_: The compile.
        names: How functions are named.

    >>> made = Compile(0, "1/1", 0.0, co_name="step", filename="train.py", line=7, reasons=["1/0: x == 3"])
    >>> described(made, Names())
    'step again: `x` changes (it was 3) (train.py:7)'
    """
    name, _ = names.function(compile_.co_name, compile_.filename, compile_.line)
    guard = again(compile_, names)
    return f"{name}{f' again: {guard}' if guard else ''} ({places.place(compile_.filename, compile_.line)})"


def again(compile_: Compile, names: Names) -> str:
    """Say in words which guards failed, one of each form; '' for the first compile of a function.

    There is a failed guard of each code that was there already, the newest first. Guards on one value say what it was
    in turn; those on a tensor have the size of this call, too, and the newest one is enough.
    """
    alike: dict[str, list[str]] = {}
    for reason in compile_.reasons:
        guard = reasons.recompile([reason], "", names).reason
        alike.setdefault(form(guard), []).append(guard)
    each = (mine[:1] if ", actual " in mine[0] else mine[::-1] for mine in alike.values())
    return "; ".join(dict.fromkeys(words(oldest, later) for oldest, *later in each))


def tables(compiles: Sequence[Compile], rank: int) -> dict[str, pd.DataFrame]:
    """Return the graphs (without their code), breaks, recompiles and compiles as a record has them.

    Args:
        compiles: Those of one rank, oldest first.
        rank: The rank.
    """
    log = CompileLog()
    log.compiles.update({(compile_.epoch, compile_.id): compile_ for compile_ in compiles})
    found = build_record([], log, float("-inf"), stages=False, operators=False)
    return {
        name: found.tables[name].assign(rank=rank) for name in ("graphs", "breaks", "recompiles", "compiles")
    }

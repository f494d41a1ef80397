"""The rows of what ranks recorded, as tables of a report, and rows again: what a file holds is checked."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

import pandas as pd

from oddrank.record import Collective, Compile, Mark, Range, Segment, Table, Tables

__all__ = ["KEPT", "columns", "frames", "tables", "value"]

KEPT = {"compiles": Compile, "marks": Mark, "collectives": Collective, "ranges": Range, "segments": Segment}
LEFT_OUT = (
    "op",
    "kernel",
    "inlined",
)  # marks of which there are thousands, and which the annotated source alone shows


def columns(name: str) -> list[str]:
    """The columns of a table."""
    return Table(KEPT[name]).columns


def frames(found: Tables, operators: bool = False) -> dict[str, pd.DataFrame]:
    """The tables by name.

    Args:
        found: The tables.
        operators: Whether marks of Dynamo's operators, kernels and inlined functions stay. Those of lowered operators
            never do: they are most of all.
    """
    short = Table(
        Mark, (mark for mark in found.marks if mark.kind not in LEFT_OUT or (operators and _kept(mark)))
    )
    return {name: (short if name == "marks" else getattr(found, name)).frame() for name in KEPT}


def _kept(mark: Mark) -> bool:
    return mark.kind != "op" or mark.stage == "dynamo"


def tables(found: Mapping[str, pd.DataFrame], **about: Any) -> Tables:
    """The rows of tables that `frames` made.

    Args:
        found: The tables by name; one that is not there has no row.
        about: What else is known of them, as the arguments of `Tables`.

    Raises:
        ValueError: A table lacks a column, or a cell holds something else than its column does.
    """
    made = Tables(**about)
    for name, kind in KEPT.items():
        if name in found:
            known = typing.get_type_hints(kind)
            cells = [
                _values(found[name][column].tolist(), known[column], f"{name}.{column}") for column in known
            ]
            getattr(made, name).extend(kind(*row) for row in zip(*cells, strict=True))
    return made


def _values(cells: list[Any], kind: Any, where: str) -> list[Any]:
    """A column; most hold one type, whose cells need no look at each."""
    if kind in (str, bool, int) and all(type(cell) is kind for cell in cells):
        return cells
    return [value(cell, kind, where) for cell in cells]


def value(cell: Any, kind: Any, where: str) -> Any:
    """One value out of JSON as the type that a row has there.

    Raises:
        ValueError: It is none; the message names `where` it stands.

    >>> value([["train.py", 7, "step"]], tuple[tuple[str, int, str], ...], "chain")
    (('train.py', 7, 'step'),)
    """
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    missing = cell is None or cell != cell  # pandas has NaN in a column of numbers
    for one in options:
        if one is types.NoneType or missing:
            if one is types.NoneType and missing:
                return None
        elif typing.get_origin(one) is tuple:
            inner = typing.get_args(one)
            if isinstance(cell, (list, tuple)):
                each = inner[:1] * len(cell) if inner[-1] is Ellipsis else inner
                if len(each) == len(cell):
                    return tuple(value(part, type_, where) for part, type_ in zip(cell, each, strict=True))
        elif isinstance(cell, one) and (one is bool or not isinstance(cell, bool)):
            return cell
        elif one in (int, float) and type(cell) in (int, float) and cell == one(cell):
            return one(cell)
    raise ValueError(f"{where} is {cell!r}")

"""Tables of records and reports, checked for the columns that a figure needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

__all__ = ["need", "table", "table_of"]


def need(frame: Any, columns: Sequence[str], table: str) -> pd.DataFrame:
    """Check that a table has the columns that a figure needs.

    Args:
        frame: a DataFrame.
        columns: the names that it must have.
        table: its name, for the message.

    Returns:
        The frame.

    Raises:
        ValueError: it is no DataFrame, or lacks columns; the message names the table and the columns.

    >>> need(pd.DataFrame({"rank": [0]}), ["rank", "us"], "breakdown")
    Traceback (most recent call last):
    ValueError: table 'breakdown' has no column 'us': it has rank
    """
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"table {table!r} must be a DataFrame, got {type(frame).__name__}")
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ValueError(
            f"table {table!r} has no column {names}: it has {', '.join(map(str, frame.columns))}"
        )
    return frame


def table_of(record: Any, name: str) -> pd.DataFrame | None:
    """Look up a table of a record, a report or a mapping of DataFrames.

    Returns:
        The table, or None where there is none of this name.
    """
    tables = record if isinstance(record, Mapping) else getattr(record, "tables", None)
    if isinstance(tables, Mapping):
        return tables.get(name)
    found = getattr(record, name, None)
    return found if isinstance(found, pd.DataFrame) else None


def table(report: Any, name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Look up a table of a report with the columns that a figure needs.

    Raises:
        ValueError: the report lacks the table or the table a column; the message names what there is.
    """
    found = table_of(report, name)
    if found is None:
        raise ValueError(
            f"this report has no table {name!r}: it has {', '.join(getattr(report, 'tables', {}))}"
        )
    return need(found, columns, name)

"""The columns and dtypes of a record's tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

__all__ = ["TABLES", "table"]

# table -> column -> dtype
TABLES: dict[str, dict[str, str]] = {
    "events": {
        "rank": "int64", "forward": "int64", "kind": "str", "name": "str", "start_us": "float64",
        "end_us": "float64", "thread": "str", "depth": "int64", "compile_id": "str", "place": "str",
        "shapes": "str",
    },
    "segments": {
        "rank": "int64", "forward": "int64", "kind": "str", "start_us": "float64", "end_us": "float64",
        "compile_id": "str", "name": "str",
    },
    "graphs": {
        "rank": "int64", "compile_id": "str", "name": "str", "place": "str", "ops": "int64",
        "collectives": "int64", "calls": "int64", "backend_graphs": "int64", "code": "str", "digest": "str",
    },
    "breaks": {
        "rank": "int64", "compile_id": "str", "kind": "str", "name": "str", "reason": "str", "place": "str",
        "executed": "int64", "at_collective": "int64", "during": "bool", "text": "str",
    },
    "recompiles": {
        "rank": "int64", "compile_id": "str", "name": "str", "reason": "str", "place": "str", "text": "str",
    },
    "compiles": {
        "rank": "int64", "compile_id": "str", "name": "str", "place": "str", "seconds": "float64",
        "dynamo_s": "float64", "backend_s": "float64", "cached": "object", "during": "bool",
    },
}  # fmt: skip


def table(name: str, rows: Iterable[dict[str, Any]], extra: Iterable[str] = ()) -> pd.DataFrame:
    """Make a table of a record, with its columns and dtypes even where there is no row.

    Args:
        name: A key of `TABLES`.
        rows: The rows, as dicts by column.
        extra: Columns of text behind those of `TABLES`.
    """
    types = TABLES[name]
    made = pd.DataFrame(list(rows), columns=[*types, *extra])
    return made.astype(types)

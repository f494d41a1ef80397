"""The tables of a record: their columns and dtypes, and one JSON file that holds them all."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import files

__all__ = ["TABLES", "read", "table", "write"]

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
FORMAT = "labkit record 2"


def table(name: str, rows: Iterable[dict[str, Any]], extra: Iterable[str] = ()) -> pd.DataFrame:
    """One of the tables above from its rows, with its columns and dtypes even when there is no row."""
    types = TABLES[name]
    made = pd.DataFrame(list(rows), columns=[*types, *extra])
    return made.astype(types)


def write(path: str | os.PathLike[str], body: dict[str, Any], frames: dict[str, pd.DataFrame]) -> Path:
    """Write tables and what else there is to say; see `Record.save`."""
    target = Path(path)
    parts = {
        name: json.loads(frame.to_json(orient="split", index=False, double_precision=9))
        for name, frame in frames.items()
    }
    data = (json.dumps({"format": FORMAT, **body, "tables": parts}, ensure_ascii=False) + "\n").encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    try:
        return files.replace(target, data)
    except OSError as error:
        raise ValueError(f"cannot save the record to {target}: {error.strerror or error}") from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Read what `write` wrote: everything but the tables, and the tables; see `Record.load`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read record {path}: {error.strerror or error}") from error
    try:
        body = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        if body.get("format") != FORMAT:
            raise ValueError(f"its format is {body.get('format')!r}, not {FORMAT!r}")
        missing = [key for key in ("origin_ns", "clock", "label", "notes") if key not in body]
        missing += [name for name in TABLES if name not in body["tables"]]
        if missing:
            raise ValueError(f"it has no {missing[0]!r}")
        return body, {name: _frame(name, part) for name, part in body["tables"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError) as error:
        raise ValueError(f"{path} is not a saved record: {error}") from error


def _frame(name: str, part: dict[str, Any]) -> pd.DataFrame:
    rows = (dict(zip(part["columns"], row, strict=True)) for row in part["data"])
    return table(name, rows, [column for column in part["columns"] if column not in TABLES[name]])

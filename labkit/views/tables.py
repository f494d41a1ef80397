"""Tables of records and reports, checked for the columns that a figure needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from oddrank.report import need, table_of

__all__ = ["need", "table", "table_of"]


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

"""A DataFrame on a page."""

from __future__ import annotations

import pandas as pd

from oddrank import page

__all__ = ["table"]


def table(frame: pd.DataFrame, caption: str = "") -> str:
    """Return a DataFrame as an HTML table of its first rows."""
    numbers = [at for at, kind in enumerate(frame.dtypes) if pd.api.types.is_numeric_dtype(kind)]
    rows = [
        [value if isinstance(value, str) else f"{value:.4g}" for value in row]
        for row in frame.itertuples(index=False)
    ]
    return page.table(list(map(str, frame.columns)), rows, caption, numbers)

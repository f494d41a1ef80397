"""`PerRank`: one value from each rank, side by side."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PerRank"]

T = TypeVar("T")
U = TypeVar("U")


class NoSuchRank(KeyError):
    """A rank that gave no value; unlike a KeyError it shows its sentence without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


class PerRank(Mapping[int, T], Generic[T]):
    """One value from each rank, by rank, in rank order: what `Ranks.run` returns.

    Args:
        values: in the order of ranks, or by rank.

    >>> losses = PerRank([0.25, 0.5])
    >>> losses[1], list(losses.values())
    (0.5, [0.25, 0.5])
    >>> losses.map(lambda v: v * 4)
    PerRank(rank 0: 1.0, rank 1: 2.0)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[T] | Mapping[int, T]):
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        self._values: dict[int, T] = dict(sorted(pairs))

    def __getitem__(self, rank: int) -> T:
        try:
            return self._values[rank]
        except (KeyError, TypeError):
            raise NoSuchRank(f"no value from rank {rank!r}: this result has ranks {list(self)}") from None

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def map(self, fn: Callable[[T], U]) -> PerRank[U]:
        """Apply a function to the value of every rank, in the calling process."""
        return PerRank({rank: fn(value) for rank, value in self._values.items()})

    def same(self) -> T:
        """Check that all ranks agree. Tensors and arrays agree when shape, dtype and every element do.

        Raises:
            ValueError: a rank differs from the lowest one; the message names both values.

        >>> PerRank([3, 3]).same()
        3
        """
        first_rank, first = next(iter(self._values.items()))
        for rank, value in self._values.items():
            if not _equal(first, value):
                raise ValueError(
                    f"ranks differ: rank {first_rank} has {_short(first)}, rank {rank} has {_short(value)}"
                    f"{_where_differ(first, value)}"
                )
        return first

    def frame(self) -> pd.DataFrame:
        """Convert the values into a tidy DataFrame with a `rank` column.

        Mappings become one column for each key; DataFrames are stacked; anything else is in `value`.

        >>> PerRank([{"ms": 1.5}, {"ms": 2.5}]).frame()
           rank   ms
        0     0  1.5
        1     1  2.5
        """
        import pandas as pd

        values = list(self._values.values())
        if values and all(isinstance(v, pd.DataFrame) for v in values):
            parts = []
            for rank, table in self._values.items():
                body = table.drop(columns="rank", errors="ignore")  # type: ignore[attr-defined]
                body.insert(0, "rank", rank)
                parts.append(body)
            return pd.concat(parts, ignore_index=True)
        rows = [
            {"rank": rank, **value} if isinstance(value, Mapping) else {"rank": rank, "value": value}
            for rank, value in self._values.items()
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        texts = {rank: repr(value) for rank, value in self._values.items()}
        if any("\n" in text or len(text) > 60 for text in texts.values()):
            return "\n".join(f"rank {rank}: {text}" for rank, text in texts.items())
        return "PerRank(" + ", ".join(f"rank {rank}: {text}" for rank, text in texts.items()) + ")"

    def _repr_html_(self) -> str:
        cell = "vertical-align:top;text-align:left;padding:2px 14px 2px 0;white-space:pre-wrap;font-family:monospace"
        head = "".join(f'<th style="{cell};font-weight:bold">rank {rank}</th>' for rank in self._values)
        body = "".join(f'<td style="{cell}">{_html(value)}</td>' for value in self._values.values())
        return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>"


def _html(value: Any) -> str:
    render = getattr(value, "_repr_html_", None)
    if callable(render) and not isinstance(value, type):
        text = render()
        if text is not None:
            return text
    return html.escape(repr(value))


def _short(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else text[:77] + "..."


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _equal(a: Any, b: Any) -> bool:
    if hasattr(a, "equals") and type(a) is type(b):  # pandas: rows and columns, NaN equal to NaN
        return bool(a.equals(b))
    if _is_array(a) and _is_array(b):
        return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _where_differ(a: Any, b: Any) -> str:
    if not (_is_array(a) and _is_array(b)):
        return ""
    if a.shape != b.shape:
        return f" (shapes {tuple(a.shape)} and {tuple(b.shape)})"
    if a.dtype != b.dtype:
        return f" (dtypes {a.dtype} and {b.dtype})"
    unequal = int((a != b).sum())
    return f" ({unequal} of {a.numel() if hasattr(a, 'numel') else a.size} elements)"

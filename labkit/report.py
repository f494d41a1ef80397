"""The nouns every other part speaks: one value a rank, a measurement, a verdict, a report, and the label of a run."""

from __future__ import annotations

import datetime as _dt
import html
import json
import os
import pkgutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
U = TypeVar("U")

__all__ = ["PerRank", "Report", "run_label"]

SIMULATED = "simulated"
HOST_ONLY = "host only"


def run_label(backend: str, device: str, world_size: int = 2, gpus: int = 0) -> str:
    """Say in two words how a run communicated, as it stands on every figure and table.

    Raises ValueError for a backend that labkit has no label for.

    >>> run_label("gloo", "cpu")
    'gloo · cpu'
    >>> run_label("gloo", "cuda", gpus=1)
    'gloo · 1 gpu'
    >>> run_label("fake", "cpu")
    'host only'
    """
    if backend == "fake":
        return HOST_ONLY
    if backend == "nccl":
        return "nccl"
    if backend in ("gloo", "shm"):
        where = "cpu" if device == "cpu" else f"{gpus or world_size} gpu"
        return f"{backend} · {where}"
    raise ValueError(f"no run label for backend {backend!r}: labkit runs on 'nccl', 'gloo', 'shm' and 'fake'")


class PerRank(Sequence[T], Generic[T]):
    """One value from each rank, in rank order: what `Ranks.run` returns.

    Indexing is by rank number, so a result of `%%ranks 1` has `[1]` and no `[0]`.

    >>> losses = PerRank([0.25, 0.5])
    >>> losses[1]
    0.5
    >>> losses.map(lambda v: v * 4)
    PerRank(rank 0: 1.0, rank 1: 2.0)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[T] | Mapping[int, T]):
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        self._values: dict[int, T] = dict(sorted(pairs))

    def __getitem__(self, rank):  # type: ignore[override]
        try:
            return self._values[rank]
        except (KeyError, TypeError):
            raise IndexError(f"no value from rank {rank!r}: this result has ranks {self.ranks}") from None

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T]:
        return iter(self._values.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerRank) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]

    @property
    def ranks(self) -> list[int]:
        """The rank numbers that gave a value, ascending."""
        return list(self._values)

    def items(self) -> list[tuple[int, T]]:
        """Pairs of rank and value."""
        return list(self._values.items())

    def map(self, fn: Callable[[T], U]) -> PerRank[U]:
        """Apply `fn` to every rank's value, in the calling process."""
        return PerRank({rank: fn(value) for rank, value in self._values.items()})

    def same(self) -> T:
        """Return the one value that all ranks agree on.

        Tensors and arrays agree when shape, dtype and every element do. Raises ValueError naming the
        first rank that differs from the lowest one, with both values.

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
        """Lay the values out as a tidy DataFrame with a `rank` column.

        Mappings become one column a key; DataFrames are stacked; anything else stands in `value`.

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


@dataclass(frozen=True)
class Report:
    """What an experiment found: tidy tables, verdicts, where and how it ran. Data only; a view draws it.

    `tables` maps a name to a DataFrame (a `rank` column wherever values are per rank); `label` is the run
    label; `provenance` says hardware, torch, date, commit and settings; `view` names the drawing function
    as 'module:function', looked up only when `figure()` is called, so a Report loads without matplotlib.

    >>> import pandas as pd
    >>> report = Report("demo", "A demonstration", "gloo · cpu", {"main": pd.DataFrame({"rank": [0, 1]})})
    >>> list(report.frame["rank"])
    [0, 1]
    """

    name: str
    title: str
    label: str
    tables: dict[str, pd.DataFrame]
    verdicts: list[Any] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    view: str = ""

    @property
    def frame(self) -> pd.DataFrame:
        """The first table: the one that answers the experiment's question."""
        return next(iter(self.tables.values()))

    def figure(self, *args: Any, **kwargs: Any) -> Any:
        """Draw the report with its view and return a matplotlib Figure.

        Raises ValueError when the report names no view.
        """
        if not self.view:
            raise ValueError(
                f"report {self.name!r} has no view to draw it with; its tables are {list(self.tables)}"
            )
        return pkgutil.resolve_name(self.view)(self, *args, **kwargs)

    def recorded(self) -> Report:
        """The same report, labelled with the machine and day it was recorded on instead of as a live run."""
        hardware = self.provenance.get("hardware", "unknown hardware")
        date = str(self.provenance.get("date", "unknown date"))[:10]
        return replace(self, label=f"recorded on {hardware}, {date}")

    def text(self) -> str:
        """Plain text: title, label, first table, verdicts and notes."""
        lines = [f"{self.title}  [{self.label}]", "", self.frame.to_string(index=False)]
        lines += ["", *map(str, self.verdicts)] if self.verdicts else []
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)

    __str__ = text

    def _repr_html_(self) -> str:
        parts = [
            f"<h4 style='margin-bottom:2px'>{html.escape(self.title)}</h4>",
            f"<div style='color:#666;margin-bottom:6px'>{html.escape(self.label)}</div>",
            self.frame.to_html(index=False, border=0, float_format=lambda v: f"{v:.4g}"),
        ]
        for entries in (self.verdicts, self.notes):
            if entries:
                parts.append("<ul>" + "".join(f"<li>{html.escape(str(e))}</li>" for e in entries) + "</ul>")
        return "".join(parts)

    def to_json(self, tables: Sequence[str] | None = None) -> str:
        """One JSON document, with every table or those named; `from_json` reads it back.

        Tables are written column by column, a repeated text once, so that a record of tens of thousands of
        segments stays small enough to keep in a repository.
        """
        chosen = self.tables if tables is None else {name: self.tables[name] for name in tables}
        body = {
            "name": self.name,
            "title": self.title,
            "label": self.label,
            "provenance": self.provenance,
            "verdicts": [v if isinstance(v, (dict, str)) else v.to_dict() for v in self.verdicts],
            "notes": self.notes,
            "view": self.view,
        }
        text = json.dumps(body, indent=1, ensure_ascii=False, default=str)[:-2]
        columns = [
            f"  {json.dumps(name)}: {{\n"
            + ",\n".join(
                f"   {json.dumps(column)}: {json.dumps(_pack(table[column]), ensure_ascii=False, default=str)}"
                for column in table.columns
            )
            + "\n  }"
            for name, table in chosen.items()
        ]
        return text + ',\n "tables": {\n' + ",\n".join(columns) + "\n }\n}"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote. Raises ValueError naming the part that is missing."""
        import pandas as pd

        from labkit.timing import Verdict

        body = json.loads(text)
        missing = [key for key in ("name", "title", "label", "tables") if key not in body]
        if missing:
            raise ValueError(f"this is not a saved report: it has no {', '.join(missing)}")
        tables = {
            name: pd.DataFrame({column: _unpack(packed) for column, packed in table.items()})
            for name, table in body["tables"].items()
        }
        verdicts = [v if isinstance(v, str) else Verdict.from_dict(v) for v in body.get("verdicts", [])]
        rest = {k: body[k] for k in ("provenance", "notes", "view") if k in body}
        return cls(body["name"], body["title"], body["label"], tables, verdicts, **rest)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `<folder>/<name>.json` (to a temporary file, then renamed, so a crash loses nothing) and return it.

        Raises ValueError naming the folder when it cannot be written.
        """
        folder = Path(folder)
        target = folder / f"{self.name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{self.name}-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as out:
                    out.write(self.to_json() + "\n")
                os.chmod(temporary, 0o644)  # mkstemp makes it private; a report is meant to be shared
                os.replace(temporary, target)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise ValueError(
                f"cannot save report {self.name!r} in {folder}: {error.strerror or error}"
            ) from error
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a saved report; its label becomes 'recorded on <hardware>, <date>'.

        Raises ValueError naming the file when it is missing or not a report.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot read report {path}: {error.strerror or error}") from error
        try:
            return cls.from_json(text).recorded()
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a saved report: {error}") from error


def _pack(column: pd.Series) -> Any:
    """A column as a list, or as its distinct texts and an index into them where texts repeat."""
    import pandas as pd

    if pd.api.types.is_float_dtype(column):
        # nine digits: a nanosecond in a second, and no noise behind them
        return [None if pd.isna(v) else float(f"{v:.9g}") for v in column]
    values = column.tolist()
    if values and all(isinstance(v, str) for v in values):
        distinct = list(dict.fromkeys(values))
        if len(distinct) * 4 < len(values):
            index = {text: i for i, text in enumerate(distinct)}
            return {"texts": distinct, "index": [index[v] for v in values]}
    return values


def _unpack(packed: Any) -> list[Any]:
    return [packed["texts"][i] for i in packed["index"]] if isinstance(packed, dict) else packed


def provenance(**settings: Any) -> dict[str, Any]:
    """Where and when a report was made: hardware, versions, date (UTC), commit, plus the given settings.

    >>> sorted(provenance(blocks=4))[:2]
    ['blocks', 'commit']
    """
    from labkit import hardware

    now = _dt.datetime.now(_dt.UTC).isoformat(timespec="seconds")
    return {**hardware.describe(), "date": now, **settings}

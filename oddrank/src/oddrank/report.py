"""Reports: tables, verdicts, provenance, and the label that says how the ranks communicated."""

from __future__ import annotations

import datetime as _dt
import html
import json
import os
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oddrank import machine
from oddrank.files import Unsaved, write

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Report", "need", "provenance", "table_of"]

RECORDED = "recorded on"
SIMULATED = "simulated"
MODELLED = "modelled"
PARTS = {"tables": dict, "provenance": dict, "verdicts": list, "notes": list}
KINDS = {dict: "object", list: "array"}
OURS = ("labkit", "course")  # whose functions may draw a report
MIME = "application/vnd.labkit.report"  # a report as data, in the outputs of an executed notebook
AS_DATA = "LABKIT_REPORTS"  # a variable of the environment: with it, a cell that shows a report leaves it as data, too


@dataclass(frozen=True, repr=False)
class Report:
    """What an experiment found: data only, which a view draws.

    Args:
        name: of the experiment and the saved file.
        title: of the report.
        label: the run label.
        tables: DataFrames by name, with a `rank` column wherever values are per rank.
        verdicts: texts, or objects with `to_dict`.
        provenance: hardware, torch, date, commit and settings.
        notes: sentences.
        view: the drawing function as 'module:function', looked up only when `figure()` is called, so that a Report
            loads without matplotlib.

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
        """Draw the report with its view. Showing the figure counts as showing the report: `labkit run` keeps its data.

        Args:
            args, kwargs: passed to the view.

        Returns:
            What the view makes.

        Raises:
            ValueError: the report names no view, or one that is not there any more.
        """
        if not self.view:
            raise ValueError(
                f"report {self.name!r} has no view to draw it with; its tables are {list(self.tables)}"
            )
        if self.view.partition(".")[0] not in OURS:  # a file may come from anywhere
            raise ValueError(f"the view of report {self.name!r} is of none of {', '.join(OURS)}: {self.view}")
        try:
            view = pkgutil.resolve_name(self.view)
        except (ImportError, AttributeError):
            raise ValueError(
                f"the view of report {self.name!r}, {self.view}, is not there any more"
            ) from None
        drawn = view(self, *args, **kwargs)
        drawn.data = self._repr_mimebundle_()
        return drawn

    def recorded(self) -> Self:
        """The same report, labelled with the machine and day of the recording instead of as a live run.

        A run on the CPU of a machine with GPUs says so. What is simulated or modelled keeps its label.
        """
        if self.label in (SIMULATED, MODELLED):
            return self
        hardware = str(self.provenance.get("hardware", "unknown hardware"))
        on_cpu = self.provenance.get("device") == "cpu" or (
            "· cpu" in self.label and "cuda" not in self.label
        )
        if on_cpu and self.provenance.get("gpus"):
            hardware = f"the CPU beside {hardware}"
        date = str(self.provenance.get("date", "unknown date"))[:10]
        return replace(self, label=f"{RECORDED} {hardware}, {date}")

    def text(self) -> str:
        """Plain text: title, label, first table, verdicts and notes."""
        lines = [f"{self.title}  [{self.label}]", "", _flat(self.frame).to_string(index=False)]
        lines += ["", *map(str, self.verdicts)] if self.verdicts else []
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)

    __str__ = __repr__ = text

    def _repr_html_(self) -> str:
        table = _flat(self.frame).to_html(index=False, border=0, float_format=lambda v: f"{v:.4g}")
        parts = [
            # not a heading: it would stand out of order between the headings of a lesson
            f"<p style='margin-bottom:2px'><b>{html.escape(self.title)}</b></p>",
            f"<div style='opacity:.7;margin-bottom:6px'>{html.escape(self.label)}</div>",
            # a wide table scrolls by itself: without this JupyterLab cuts its columns off
            f"<div style='overflow-x:auto'>{table}</div>",
        ]
        for entries in (self.verdicts, self.notes):
            if entries:
                parts.append("<ul>" + "".join(f"<li>{html.escape(str(e))}</li>" for e in entries) + "</ul>")
        return "".join(parts)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The report as data for whoever executes the notebook; a recorded one was kept by who recorded it."""
        if not os.environ.get(AS_DATA) or self.label.startswith(RECORDED):
            return {}
        return {MIME: self.to_json()}

    def to_json(self, tables: Sequence[str] | None = None) -> str:
        """Convert the report into one JSON document, which `from_json` reads.

        Tables are written column by column, an index with names among the columns, and a repeated text once, so that a
        record of tens of thousands of segments stays small enough for a repository.

        Args:
            tables: names of the tables to write; by default all.

        Returns:
            The text.
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
        chosen = {name: _flat(table) for name, table in chosen.items()}
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
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` returned.

        Raises:
            ValueError: a part is missing or of another kind; the message names it.
        """
        import pandas as pd

        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError("this is not a saved report: it is no JSON object")
        missing = [key for key in ("name", "title", "label", "tables") if key not in body]
        if missing:
            raise ValueError(f"this is not a saved report: it has no {', '.join(missing)}")
        for key, kind in PARTS.items():
            if not isinstance(body.get(key, kind()), kind):
                raise ValueError(f"this is not a saved report: {key!r} is no JSON {KINDS[kind]}")
        tables = {
            name: pd.DataFrame({column: _unpack(packed) for column, packed in table.items()})
            for name, table in body["tables"].items()
        }
        verdicts = [v if isinstance(v, str) else cls._verdict(v) for v in body.get("verdicts", [])]
        rest = {k: body[k] for k in ("provenance", "notes", "view") if k in body}
        return cls(body["name"], body["title"], body["label"], tables, verdicts, **rest)

    @staticmethod
    def _verdict(facts: dict[str, Any]) -> Any:
        """A verdict, from what its `to_dict` gave: in words, for its class is labkit's."""
        return ", ".join(f"{key} {value}" for key, value in facts.items() if value not in ("", {}, None))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `<folder>/<name>.json` through a temporary file.

        Returns:
            The path.

        Raises:
            Unsaved: it cannot be written; the message names the folder.
        """
        try:
            return write(Path(folder) / f"{self.name}.json", (self.to_json() + "\n").encode())
        except OSError as error:
            raise Unsaved(
                f"cannot save report {self.name!r} in {folder}: {error.strerror or error}"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved report; its label becomes 'recorded on <hardware>, <date>'.

        Raises:
            ValueError: the file is missing or not a report; the message names it.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"cannot read report {path}: {error.strerror or error}") from error
        try:
            return cls.from_json(
                data.decode("utf-8-sig")
            ).recorded()  # an editor may have put a mark before it
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            said = str(error).removeprefix("this is not a saved report: ")
            raise ValueError(f"{path} is not a saved report: {said}") from error


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its named index among the columns; numbers of rows are dropped, and a name of all columns.

    The name of the columns, which a pivot leaves, would head an empty column of their page.
    """
    flat = table.reset_index() if any(name is not None for name in table.index.names) else table
    return flat.rename_axis(columns=None) if flat.columns.nlevels == 1 else flat


def _pack(column: pd.Series) -> Any:
    """A column as a list, or as its distinct texts and an index into them where texts repeat."""
    import pandas as pd

    if pd.api.types.is_float_dtype(column):
        # nine digits: a nanosecond in a second, and no noise after them
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
    """Where and when a report was made.

    Args:
        settings: of the experiment.

    Returns:
        Hardware, versions, date (UTC), commit, and the settings.

    >>> sorted(provenance(blocks=4))[:2]
    ['blocks', 'commit']
    """
    now = _dt.datetime.now(_dt.UTC).isoformat(timespec="seconds")
    return {**machine.describe(), "date": now, **settings}


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

    >>> import pandas as pd
    >>> need(pd.DataFrame({"rank": [0]}), ["rank", "us"], "breakdown")
    Traceback (most recent call last):
    ValueError: table 'breakdown' has no column 'us': it has rank
    """
    import pandas as pd

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
    import pandas as pd

    tables = record if isinstance(record, Mapping) else getattr(record, "tables", None)
    if isinstance(tables, Mapping):
        return tables.get(name)
    found = getattr(record, name, None)
    return found if isinstance(found, pd.DataFrame) else None

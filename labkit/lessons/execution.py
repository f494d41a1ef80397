"""The execution of a lesson's cells by papermill: in a fresh kernel, with other parameters, its reports as data."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from oddrank.files import Unsaved

from labkit import files, hardware
from labkit.report import AS_DATA, MIME, Report
from oddrank import places

__all__ = ["Done", "execute", "kernel"]

INJECTED = "injected-parameters"  # papermill's tag of the cell that it adds
SAID_LINES = 30  # of the text of an error


@dataclass
class Done:
    """What came of a lesson: its notebook's name, the values given, the reports that its cells showed."""

    lesson: str
    parameters: dict[str, Any]
    reports: list[Report] = field(default_factory=list)
    failed: str = ""  # which cell failed, and why


@contextlib.contextmanager
def kernel() -> Iterator[dict[str, Any]]:
    """What a kernel needs to be started beside other work: ports that nobody can take, and a data folder of its own.

    Gives the configuration of the kernel manager, and sets `LABKIT_HOME`: the answers of the person at this machine are
    neither shown nor added to.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-home-") as folder:
        # not over TCP: Jupyter chooses a kernel's ports before the kernel takes them, and another may be sooner
        over = {"transport": "ipc", "connection_file": os.path.join(folder, "kernel.json")}
        with mock.patch.dict(os.environ, {"LABKIT_HOME": os.path.join(folder, "home")}):
            yield {"KernelManager": over}


def execute(
    path: Path,
    values: Mapping[str, Any],
    folder: Path | None = None,
    say: Callable[[str], Any] = lambda text: None,
    shown: Callable[[Report], Any] = lambda report: None,
) -> Done:
    """Execute a lesson from top to bottom in a fresh kernel.

    Args:
        path: of the notebook, which stays as it is.
        values: parameters by name, already checked.
        folder: where the executed notebook goes, and each report as soon as a cell has shown it; None for nowhere.
        say: called with pieces of a line of progress.
        shown: called with each report as soon as a cell has shown it.

    Raises:
        ValueError: papermill is not installed.
        Unsaved: a report or the notebook cannot be written.
    """
    try:
        import papermill
        from nbclient.exceptions import DeadKernelError
        from papermill.exceptions import PapermillExecutionError
        from traitlets.config import Config
    except ImportError as error:
        raise ValueError(
            f"{error.name} is not installed, and lessons are executed with it: pip install 'labkit[notebooks]'"
        ) from None
    done = Done(path.stem, dict(values))
    notebook = papermill.iorw.load_notebook_node(str(path))
    count = sum(cell.cell_type == "code" for cell in notebook.cells)
    number, began = 0, 0.0

    def counts(cell: Any) -> bool:
        return cell.cell_type == "code" and INJECTED not in cell.metadata.get("tags", ())

    def started(cell: Any, cell_index: int) -> None:
        nonlocal number, began
        if counts(cell):
            number, began = number + 1, time.monotonic()
            first = next(filter(None, map(str.strip, cell.source.splitlines())), "")
            say(f"{files.number(path)} [{number}/{count}] {first[:70]}")

    def executed(cell: Any, cell_index: int, execute_reply: Any) -> None:
        if counts(cell):
            say(f"  {time.monotonic() - began:.1f} s\n")
        for report in _reports(cell, done):
            done.reports.append(report)
            if folder is not None:
                report.save(folder)
            shown(report)

    out = None if folder is None else str(folder / path.name)
    try:
        with kernel() as over, mock.patch.dict(os.environ, {AS_DATA: "1"}):
            papermill.execute_notebook(
                notebook,
                out and out.replace("{", "{{").replace("}", "}}"),  # papermill formats a path
                parameters=dict(values),
                kernel_name="python3",
                progress_bar=False,
                cwd=str(path.parent),
                on_cell_start=started,
                on_cell_executed=executed,
                config=Config(over),
                coalesce_streams=True,
            )
    except PapermillExecutionError as error:
        done.failed = f"{path.stem} [{number}]{_line(error.traceback)}: {error.ename}: {_cut(error.evalue)}"
    except DeadKernelError:
        done.failed = f"{path.stem} [{number}]: the kernel died in this cell"
    except OSError as error:
        if folder is None:
            raise
        raise Unsaved(f"cannot write in {folder}: {error.strerror or error}") from error
    return done


def _reports(cell: Any, done: Done) -> Iterator[Report]:
    """The reports that a cell has shown, with where and with which parameters it ran."""
    for output in cell.get("outputs", ()):
        text = output.get("data", {}).get(MIME)
        if text is not None:
            body = _named(json.loads(text))
            body["provenance"] = {
                **hardware.describe(),
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "lesson": done.lesson,
                **done.parameters,
                **body.get("provenance", {}),
            }
            yield Report.from_json(json.dumps(body))


def _named(value: Any) -> Any:
    """What a report holds, with each file of code by its short name: the text of an error holds full paths."""
    if isinstance(value, str):
        return places.rewrite(value)
    if isinstance(value, list):
        return [_named(one) for one in value]
    return {key: _named(one) for key, one in value.items()} if isinstance(value, dict) else value


def _line(traceback: list[str]) -> str:
    """The line of the cell that an error came from, as ':12'; '' where the traceback does not say."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback))
    found = re.search(r"Cell In\[\d+\], line (\d+)", text)
    return f":{found[1]}" if found else ""


def _cut(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join([*lines[:SAID_LINES], *["..."] * (len(lines) > SAID_LINES)])

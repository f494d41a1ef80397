"""Executes the lessons and saves their outputs fit to commit; tells when outputs are older than the code.

    python -m tools.notebooks execute [NOTEBOOK ...]
    python -m tools.notebooks check [NOTEBOOK ...]

A saved notebook must read well on a code host and say nothing of the machine's folders, so the state of widgets
is dropped (each has a static twin beside it), and what `tools.fit` finds unfit to commit is refused.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oddrank.files import write

from labkit import files
from labkit.lessons.execution import kernel
from labkit.pace import patience
from tools import fit
from tools.fit import ROOT, WIDGET, code_cells

__all__ = ["NotebookError", "code_hash", "execute", "is_fresh", "problems", "run"]

CELL_SECONDS = 600
_TOPIC = re.compile(r"^\s*(?:from|import) course\.(\w+)", re.MULTILINE)


class NotebookError(ValueError):
    """A notebook that cannot be executed or saved; the message names the notebook and the cell."""


def code_hash(notebook: Any) -> str:
    """SHA-256 over the code cells, in order, and over the code of the topics in `course/` that they import.

    Lines of comments and blank lines of a topic's code do not count; `course/shared` does not either.

    >>> import nbformat.v4 as v4
    >>> one = v4.new_notebook(cells=[v4.new_code_cell("x = 1")])
    >>> two = v4.new_notebook(cells=[v4.new_markdown_cell("Why?"), v4.new_code_cell("x = 1")])
    >>> code_hash(one) == code_hash(two)
    True
    """
    digest = hashlib.sha256()
    for _, cell in code_cells(notebook):
        source = cell.source.encode()
        digest.update(
            b"%d:" % len(source) + source
        )  # the length keeps a moved cell boundary from looking alike
    sources = "\n".join(cell.source for _, cell in code_cells(notebook))
    for topic in sorted({*_TOPIC.findall(sources)} - {"shared"}):
        for path in sorted((ROOT / "course" / topic).rglob("*.py")):
            lines = (line.rstrip() for line in path.read_text(encoding="utf-8").splitlines())
            code = [line for line in lines if line and not line.lstrip().startswith("#")]
            digest.update("\n".join([path.relative_to(ROOT).as_posix(), *code, ""]).encode())
    return digest.hexdigest()


def is_fresh(path: str | os.PathLike[str]) -> bool:
    """Whether the saved outputs were made from the code that the notebook holds now."""
    notebook = _read(Path(path))
    return notebook.metadata.get("labkit", {}).get("code_hash") == code_hash(notebook)


def run(
    notebook: Any, folder: str | os.PathLike[str], name: str = "notebook", timeout: float = CELL_SECONDS
) -> Any:
    """Execute `notebook` top to bottom in a new kernel that works in `folder`; returns it with its outputs.

    The kernel has a data folder of its own, empty and gone afterwards: the reader's answers are neither shown nor
    added to. `timeout` is seconds a cell on a quiet machine, and more where it is slow or busy. Raises NotebookError
    naming the cell that failed, ran too long or lost its kernel.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    running = [0]

    def started(cell: Any, cell_index: int) -> None:
        running[0] = cell_index

    try:
        with kernel() as over:
            client = NotebookClient(
                notebook,
                timeout=round(patience(timeout)),
                kernel_name="python3",
                resources={"metadata": {"path": str(folder)}},
                coalesce_streams=True,
                store_widget_state=False,
                record_timing=False,
                on_cell_execute=started,
                config=Config(over),
            )
            client.execute()
    except CellExecutionError as error:
        raise NotebookError(
            f"{name}, {_cell(notebook, running[0])}: {error.ename}: {error.evalue}\n{error}"
        ) from error
    except CellTimeoutError as error:
        raise NotebookError(
            f"{name}, {_cell(notebook, running[0])}: still running after {timeout} s"
        ) from error
    except DeadKernelError as error:
        raise NotebookError(f"{name}, {_cell(notebook, running[0])}: the kernel died") from error
    return notebook


def execute(path: str | os.PathLike[str], timeout: float = CELL_SECONDS) -> Path:
    """Execute the notebook at `path` in its own folder and save it with its outputs, in one step or not at all.

    Raises NotebookError, and leaves the file as it was, when a cell fails or an output is not fit to commit.
    """
    path, started = Path(path), time.monotonic()
    notebook = run(_read(path), path.parent, path.name, timeout)
    seconds = round(time.monotonic() - started)
    unfit = _tidy(notebook) + fit.outputs(notebook)
    notebook.metadata["labkit"]["seconds"] = seconds
    if unfit:
        raise NotebookError("\n".join(f"{path.name}, {line}" for line in unfit))
    _write(notebook, path)
    return path


def problems(path: str | os.PathLike[str]) -> list[str]:
    """Why the notebook at `path` is not fit to commit, a line each; empty when it is.

    Looked for: outputs older than the code, no outputs at all, cells that were not run, whatever `fit.outputs`,
    `fit.headings`, `fit.links`, `fit.stated`, `fit.prose` and `fit.numbers` find, and a file of more than
    `fit.MOST_BYTES`.
    """
    path = Path(path)
    notebook = _read(path)
    found = fit.outputs(notebook) + fit.headings(notebook) + fit.stated(notebook) + fit.size(path)
    found += fit.links(notebook, path.parent) + fit.prose(notebook) + fit.numbers(notebook)
    if not is_fresh(path):
        execute = f"`make notebooks NOTEBOOKS=notebooks/{path.name}` executes it"
        return [f"its outputs are older than its cells or its topic's code: {execute}", *found]
    if missing := [key for key in ("torch", "hardware", "date") if not notebook.metadata["labkit"].get(key)]:
        found.append(f"it does not say what its outputs were made on: {', '.join(missing)} is missing")
    if not any(cell.outputs for _, cell in code_cells(notebook)):
        return ["it has no outputs: `make notebooks` executes it", *found]
    return fit.unrun(notebook) + found


def _cell(notebook: Any, index: int) -> str:
    """A cell as a person counts (from 1), with its first line."""
    lines = [line.strip() for line in notebook.cells[index].source.splitlines()]
    return f"cell {index + 1} ({next(filter(None, lines), '')[:60]})"


def _read(path: Path) -> Any:
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
    except OSError as error:
        raise NotebookError(f"cannot read notebook {path}: {error.strerror or error}") from error
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise NotebookError(f"{path} is not a notebook: {str(error).splitlines()[0]}") from error
    for i, cell in enumerate(
        notebook.cells, 1
    ):  # older formats have no ids; the same ones every time keep diffs small
        cell.setdefault("id", f"cell-{i:03d}")
    notebook.nbformat_minor = max(notebook.nbformat_minor, 5)
    return notebook


def _tidy(notebook: Any) -> list[str]:
    """Keep what the code makes, drop what the moment or the machine adds: timestamps, versions, widget state.

    Returns a line for each cell that would be left with nothing to see once its widget is gone.
    """
    bare = []
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "labkit": {"code_hash": code_hash(notebook), **_where_and_when()},
        "language_info": {"name": "python"},
    }
    for i, cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
        widgets = [output for output in cell.outputs if WIDGET in output.get("data", {})]
        for output in widgets:
            del output.data[WIDGET]
            if set(output.data) <= {"text/plain"}:  # only the widget's repr is left
                output.data.clear()
        # how long calls stood while they ran, and questions that nobody answered: of no use to a reader of the page
        passing = [o for o in cell.outputs if o.get("metadata", {}).get("labkit") in ("live", "question")]
        cell.outputs = [o for o in cell.outputs if o.get("data", True) and o not in passing]
        if widgets and not cell.outputs and not passing:
            bare.append(f"cell {i}: its widget has no static twin: show a figure and a line of text with it")
    return bare


def _where_and_when() -> dict[str, str]:
    """What the outputs were made on."""
    from labkit import hardware

    facts = hardware.describe()
    return {
        "torch": str(facts["torch"]),
        "hardware": str(facts["hardware"]),
        "date": datetime.date.today().isoformat(),
    }


def _write(notebook: Any, path: Path) -> None:
    import nbformat

    write(path, (nbformat.writes(notebook) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 when any notebook failed, after trying them all."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=["execute", "check"])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of notebooks/")
    parser.add_argument(
        "--timeout", type=float, default=CELL_SECONDS, help="seconds a cell (default %(default)s)"
    )
    chosen = parser.parse_args(arguments)
    paths = chosen.notebooks or files.notebooks()
    if not paths:
        print(f"no notebooks found in {ROOT / 'notebooks'}", file=sys.stderr)
        return 1
    failed = 0
    for path in paths:
        start = time.monotonic()
        try:
            if chosen.verb == "execute":
                execute(path, chosen.timeout)
                print(f"{path.name}: executed in {time.monotonic() - start:.1f} s", flush=True)
            elif unfit := problems(path):
                raise NotebookError("\n".join(f"{path.name}: {line}" for line in unfit))
        except NotebookError as error:
            failed += 1
            print(error, file=sys.stderr, flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

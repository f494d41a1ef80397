"""Makes the data of data/captured anew: the stream graphs of lessons 07 and 07b, what Inductor writes for
CUDA, and what lesson 19's files print on another torch.

    python -m tools.recapture            # both; without triton only the graphs
    python -m tools.recapture graphs     # stream_graphs.json, from lessons 07 and 07b
    python -m tools.recapture inductor   # inductor_streams.json; takes triton, no GPU
    python -m tools.recapture later      # later_torch.json, under the later torch that lesson 07 shows; takes triton
    python -m tools.recapture patterns   # stream_patterns.json, the row of the torch that runs it; takes triton
    python -m tools.recapture two_versions   # two_versions.json, of lesson 19; by `uv run`, with torch 2.15.0

Takes a torch that compiles streams. The graphs are of the functions as they stand in the notebooks: capture them anew
when a function of a lesson, or torch, has changed.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import datetime
import importlib.util
import inspect
import io
import json
import linecache
import os
import re
import subprocess
import symtable
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from oddrank.files import write

import labkit
from course.compiled_streams import inside, patterns
from course.compiled_streams.kernels import FUNCTIONS, kernels
from course.offload.offload import NEEDED
from course.shared.streams import captured, shipped
from labkit import files, hardware, torch_compat
from ledger import environments

__all__ = ["cells", "graphs", "inductor", "later", "main", "needed", "run"]

NOTEBOOKS = files.ours("notebooks")
LESSON = "07_streams_in_compile"
LESSONS = (LESSON, "07b_activation_offloading")
INDUCTOR = files.ours("data/captured/inductor_streams.json")
LOOKS = {"capture", "look", "unchecked", "in_a_child", "traced"}  # into a child process
TWIN = files.ours("data/captured/two_versions.json")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MADE_OF_FILES = re.compile(r"^ *# kernel path: .*\n", re.MULTILINE)  # a folder of the machine


def cells(lesson: str) -> list[str]:
    """The code cells of a lesson, without lines that only IPython knows."""
    notebook = json.loads((NOTEBOOKS / f"{lesson}.ipynb").read_text(encoding="utf-8"))
    found = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    return [re.sub(r"^%.*$", "", source, flags=re.MULTILINE) for source in found]


def needed(sources: Iterable[str]) -> list[str]:
    """The cells that look into a child process, and those that define what they use, in their order.

    >>> needed(["x = 1", "y = 2", "z = 3", "capture(x + 1)", "def f(): return y"])
    ['x = 1', 'capture(x + 1)']
    """
    given = list(sources)
    chosen = [bool(LOOKS & _used(source)) for source in given]
    for i in reversed(range(len(given))):  # what is used is defined in a cell before
        if chosen[i]:
            wanted = _used(given[i])
            wanted |= set(NEEDED) if "globals" in wanted else set()  # the program that is handed over whole
            wanted -= set(dir(builtins))
            for j in reversed(range(i)):
                if wanted & _defined(given[j]):
                    chosen[j] = True
    return [source for source, take in zip(given, chosen, strict=True) if take]


def _used(source: str) -> set[str]:
    """The global names that a cell reads, in its functions too, and the methods it calls."""
    called = {n.func for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)}
    read = {
        s.get_name() for t in _tables(source) for s in t.get_symbols() if s.is_referenced() and _global(t, s)
    }
    return read | {f.attr for f in called if isinstance(f, ast.Attribute)}


def _defined(source: str) -> set[str]:
    """The global names that a cell binds; those that its functions bind are their own."""
    return {
        s.get_name()
        for t in _tables(source)
        for s in t.get_symbols()
        if (s.is_assigned() or s.is_imported()) and _global(t, s)
    }


def _tables(source: str) -> Iterator[symtable.SymbolTable]:
    waiting = [symtable.symtable(source, "cell", "exec")]
    while waiting:
        yield (table := waiting.pop())
        waiting += table.get_children()


def _global(table: symtable.SymbolTable, symbol: symtable.Symbol) -> bool:
    return table.get_type() == "module" or symbol.is_global()


def run(sources: Iterable[str], names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run cells one after another in one namespace, with their sources where `inspect` finds them."""
    space: dict[str, Any] = {"__name__": "__main__", **(names or {})}
    for i, source in enumerate(sources):
        name = f"cell {i}"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), space)
    return space


def _as_cells(sources: Iterable[str]) -> None:
    """Run cells as IPython does: their sources then travel along, and stand in the texts of the graphs."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for source in sources:
                shell.run_cell(source, store_history=True).raise_error()
    finally:
        InteractiveShell.clear_instance()


def graphs(path: Path = shipped.FILE, lessons: Iterable[str] = LESSONS) -> Path:
    """Run the cells of the lessons that need a child process, and write what the children found."""
    if not torch_compat.has_stream_graphs():
        raise torch_compat.UnsupportedTorch(f"streams are compiled by torch {shipped.SINCE} and later")

    class Quiet:  # a started group of ranks belongs to none of these cells
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a cell that is captured uses the ranks: {name}")

    started, labkit.Ranks = labkit.Ranks, lambda *given, **named: Quiet()  # type: ignore[misc, assignment]
    home = os.environ.get("LABKIT_HOME")
    try:
        with tempfile.TemporaryDirectory() as folder, shipped.recording() as record:
            os.environ["LABKIT_HOME"] = folder  # what a lesson remembers of its reader is no business of ours
            for lesson in lessons:
                _as_cells(needed(cells(lesson)))
    finally:
        labkit.Ranks = started  # type: ignore[misc]
        os.environ.pop("LABKIT_HOME")
        os.environ |= {} if home is None else {"LABKIT_HOME": home}
    return shipped.save(record, torch.__version__.partition("+")[0], _today(), path)


def inductor(path: Path = INDUCTOR) -> Path:
    """Let Inductor write CUDA code of `FUNCTIONS`, and save it. Raises UnsupportedTorch without triton."""
    code = inside.inductor_code(*FUNCTIONS, streams=2)
    triton = importlib.import_module("triton").__version__
    made = torch.__version__.partition("+")[0]
    body = {
        "label": f"captured, not run: torch {made}, triton {triton}, pretending to be an H100, {_today()}",
        "torch": made,
        "triton": triton,
        "source": "\n\n".join(inspect.getsource(fn) for fn in FUNCTIONS[:2]),
        "sources": {fn.__name__: inspect.getsource(fn) for fn in FUNCTIONS},
        **{name: MADE_OF_FILES.sub("", text) for name, text in code.items()},
    }
    return write(path, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())


def later() -> Path:
    """Keep the forward graph of lesson 07's `hand_over` and the kernels of `FUNCTIONS`, as this torch makes them."""
    (source,) = [one for one in cells(LESSON) if "def hand_over(" in one]
    graph = captured.capture(run(["import torch", source])["hand_over"], torch.ones(4)).forward[0]
    code = inside.inductor_code(*FUNCTIONS, streams=2)
    found = {name: kernels(text) for name, text in code.items()}
    return shipped.save_later(replace(graph, text=""), found, torch.__version__.partition("+")[0], _today())


def stream_patterns() -> Path:
    """Keep what this torch makes of lesson 07's patterns. Raises UnsupportedTorch without triton."""
    try:
        triton = importlib.import_module("triton").__version__
    except ImportError:
        raise torch_compat.UnsupportedTorch(
            "the code that Inductor writes for CUDA takes the package triton"
        ) from None
    return Path(patterns.keep(_today(), triton))


def two_versions(version: str = "2.15.0") -> Path:
    """Run the files that lesson 19 writes with another torch, and keep what they print: its saved twin."""
    options, env = environments.options()
    uv = ["uv", "run", "--isolated", "--no-project", "--with", f"torch=={version}", *options]
    printed = {}
    notebook = json.loads((NOTEBOOKS / "19_new_torch.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        first, _, program = "".join(cell["source"]).partition("\n")
        if not first.startswith("%%writefile "):
            continue
        name = first.split()[1]
        launch = TORCHRUN if "init_process_group" in program else ()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_text(program + "\n")
            command = [*uv, "python", *launch, str(file)]
            done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"{name} failed: {done.stderr[-600:]}")
        printed[name] = {"program": program + "\n", "printed": done.stdout}
    label = f"saved: torch {version}, {hardware.describe()['hardware']}, {_today()}"
    body = {"label": label, "torch": version, "programs": printed}
    return write(TWIN, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


MAKERS = {
    "graphs": graphs,
    "inductor": inductor,
    "later": later,
    "patterns": stream_patterns,
    "two_versions": two_versions,
}


def main(given: list[str]) -> int:
    """The command line; the exit status is 2 for a wrong word, 1 where nothing could be made."""
    if [word for word in given if word not in MAKERS]:
        print(__doc__, file=sys.stderr)
        return 2
    wanted = given or ["graphs", *(["inductor"] if importlib.util.find_spec("triton") else [])]
    try:
        for word in wanted:
            print(f"{word}: {MAKERS[word]()}")
    except torch_compat.UnsupportedTorch as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The house in figures, read off the code: what is reached, how long the path is, how many names, which circles.

python -m tools.house            the meters and the sizes
python -m tools.house --files    every file of our packages, largest first
python -m tools.house --lines    what only a test reaches, by module
python -m tools.house --names    the names that cells use, and the lessons that use each
python -m tools.house --path     the files that run between lesson 04's cell and its figure
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys

from labkit import cli, files, registry
from tools import size
from tools.reach import PACKAGES, ROOT, Code, Name, cells, dotted_names

# where a reader comes in without naming anything: what starts ranks, and the extension
STARTED = (
    ("labkit", "load_ipython_extension"),
    ("labkit", "unload_ipython_extension"),
    ("labkit.ranks.magic", "load"),
    ("labkit.ranks.magic", "unload"),
    ("labkit.ranks.worker", "main"),
    ("labkit.ranks.zygote", "main"),
    ("labkit.records.compile_log", "install"),
    # names that are resolved on first use, and what is found by name in a process of ours
    *(("labkit", name) for name in ("_WHERE", "_PARTS", "__getattr__", "__dir__")),
    ("labkit.torch_compat", "__getattr__"),
    ("labkit.ranks.fresh", "main"),
    ("labkit.ranks.fresh", "end_with"),
    ("labkit.ranks.collective_check", "begin"),
    ("labkit.ranks.collective_check", "finish"),
    ("course.compiled_streams.inside", "look"),
    ("course.compiled_streams.inside", "inductor_code"),
)
TOPIC = re.compile(r"course\.(?!shared\b)\w+\.")
PATH = """
import json, sys, threading
from pathlib import Path

HERE = str(Path.cwd()) + "/"
seen = set()

def note(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & 1:  # a function, and no module or class body
        name = frame.f_code.co_filename
        if name.startswith(HERE) and "/.venv/" not in name:
            seen.add((name.removeprefix(HERE), frame.f_code.co_qualname))

import labkit
from labkit import views
from labkit.lessons import program

cliff = program("cliff")

def recorded(variant):
    import sys
    import torch
    import labkit

    here, config = labkit.ranks.here(), cliff.Config(blocks=1)
    model = cliff.shard(cliff.full(config), here.rank, here.world_size, variant)
    forward, x = torch.compile(model, backend="aot_eager"), config.sample()
    seen.clear()
    with torch.no_grad():
        forward(x)
        sys.setprofile(note)
        with labkit.record() as rec:
            with rec.forward():
                forward(x)
        sys.setprofile(None)
    return rec, sorted(seen)

threading.setprofile(note)
sys.setprofile(note)
ranks = labkit.Ranks(2, backend="shm", quiet=True)
out = ranks.run(recorded, cliff.disabled)
views.strip(labkit.merge(out.map(lambda one: one[0])), label=ranks.label).png()
sys.setprofile(None)
threading.setprofile(None)
ranks.close()
print(json.dumps(sorted({*seen, *map(tuple, out[0][1])})))
"""


def unreached(code: Code | None = None) -> dict[str, int]:
    """Lines of code by module that no cell, exercise, ledger trial, `labkit look` or other door reaches.

    Returns:
        Modules with such lines, the most first.
    """
    code = code or Code()
    roots: set[Name] = {*STARTED, *code.in_texts(cells().values())}
    for module in registry.modules("exercises"):
        roots |= code.everything(module)
    roots |= code.everything("ledger")
    roots |= code.everything("labkit.cli", "labkit.__main__", *cli.DOORS)
    # parts to copy, and what our tools make data with
    roots |= code.everything(*(name for name in code.modules if name.startswith("labkit.contract")))
    roots |= code.in_texts(path.read_text() for path in (ROOT / "tools").glob("*.py"))
    there = code.size(code.reached(roots))
    lines = {name: len(module.lines) - there.get(name, 0) for name, module in code.modules.items()}
    return dict(sorted(((name, n) for name, n in lines.items() if n), key=lambda row: -row[1]))


def path() -> list[tuple[str, str]]:
    """File and name of each function of ours that runs between lesson 04's cell and its figure.

    Raises:
        RuntimeError: the program on the path failed; the message has what it said.
    """
    done = subprocess.run([sys.executable, "-c", PATH], cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"the path from cell to figure failed: {done.stderr[-2000:]}")
    return [(file, name) for file, name in json.loads(done.stdout.splitlines()[-1])]


def meters(code: Code | None = None) -> dict[str, int]:
    """The meters that are read off the sources; see `tests/tools/test_house.py` for what each may be at most."""
    code = code or Code()
    # a topic's package belongs to its lesson: a name of it counts where another lesson uses it too
    names = {name: books for name, books in dotted_names().items() if len(books) > 1 or not TOPIC.match(name)}
    return {
        "lines that only a test reaches": sum(unreached(code).values()),
        "names of ours in cells": len(names),
        "of these in one lesson only": sum(len(books) == 1 for books in names.values()),
        "of these from torch_compat": sum(name.startswith("labkit.torch_compat") for name in names),
        "circles of imports": len(code.circles()),
    }


def main() -> int:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("files", "lines", "names", "path"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    if asked.files:
        for file in sorted(size.python_files(*PACKAGES), key=lambda p: -size.code_lines(p.read_text())):
            print(f"{size.code_lines(file.read_text()):6,}  {file.relative_to(ROOT)}")
    elif asked.lines:
        for module, lines in unreached().items():
            print(f"{lines:6,}  {module}")
    elif asked.names:
        for name, books in sorted(dotted_names().items()):
            print(f"{name:60}  {' '.join(sorted(map(files.number, books)))}")
    elif asked.path:
        for file, name in path():
            print(f"{file}: {name}")
    else:
        code, run = Code(), path()
        shown = meters(code)
        shown["files from cell to figure"] = len({file for file, _ in run})
        shown["functions from cell to figure"] = len(run)
        for name, value in {**shown, **size.figures()}.items():
            print(f"{name:50}{value:8,}")
        for ring in code.circles():
            print("circle:", " <-> ".join(ring))
    return 0


if __name__ == "__main__":
    sys.exit(main())

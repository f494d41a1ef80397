"""`labkit run` takes every lesson from top to bottom, in a copy, so that the committed outputs stay as they are."""

from __future__ import annotations

import itertools
import shutil
import tomllib

import nbformat
import pytest

from labkit import files
from labkit.lessons import execution
from labkit.lessons.parameters import chosen, parameters

# lessons take minutes at the sizes of their saved outputs; these are smaller ones, as `labkit run` takes them
SMALLER = {
    "02": "ONLY=all_reduce",
    "04": "BLOCKS=2 ROUNDS=8",
    "05": "BLOCKS=2 ROUNDS=8",
    "06": "ROUNDS=8",
    "08": "DRILLS=order,break",
    "09": "ROUNDS=1 FORWARDS=8",
    "10b": "ROUNDS=8",
    "11": "ROUNDS=8 OWN_MS=0,1 MESH_MS=0 MISTAKES=divisor,stays_away",
    "12": "LAYERS=1 REQUESTS=8",
    "13": "ROUNDS=2 BLOCKS=1 CAPS=1",
    "14": "BLOCKS=2 LAYERS=2 ROUNDS=2",
    "16": "ROUNDS=8 STARTS=2",
    "17": "ONLY=aot_compile STARTS=1",
    "18": "ROUNDS=8 STEP_ROUNDS=8",
}
# and what no parameter makes smaller: the trials of the ledger have tests of their own, and so has what 08 and 09 count
FEWER = {
    "08": {
        "for program, settings, training in PASSES:": "for program, settings, training in PASSES[-2:]:",
    },
    "09": {
        'for compiler in ("eager", "inductor")': 'for compiler in ("eager",)',
        "for name, how in WAYS.items()": "for name, how in list(WAYS.items())[:3]",
        "programs = (summed, branches, loops)": "programs = (summed,)",
    },
    "12": {
        'for caches in ("shared", "own-{rank}", "late")': 'for caches in ("shared",)',
    },
    "18": {
        "measure.run(pair, rounds=STEP_ROUNDS)": 'measure.run(pair, ["functional"], rounds=STEP_ROUNDS)',
        'for fault in ("norm", "twice")': 'for fault in ("norm",)',
        "for fault in (*TRAINING_FIXES, *FIXES)": "for fault in (list(TRAINING_FIXES)[-1], list(FIXES)[-1])",
    },
}

STUB = "not yet: there is nothing to check yet: write the "  # body of the function, or methods of the class

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_there_are_lessons():
    assert files.lessons(), "no notebooks found in notebooks/"


GUARDS = (
    "00",
    "04",
)  # in `make test`; a changed lesson is executed anyway, or `tools.notebooks check` says so
LESSONS = [
    pytest.param(path, marks=[pytest.mark.guard] if files.number(path) in GUARDS else [], id=path.stem)
    for path in files.lessons()
]


@pytest.mark.parametrize("path", LESSONS)
def test_the_lesson_runs_top_to_bottom(path, tmp_path):
    folder = tmp_path / "notebooks"
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    notebook = nbformat.read(folder / path.name, as_version=4)
    for usual, fewer in FEWER.get(files.number(path), {}).items():
        assert any(usual in cell.source for cell in notebook.cells), f"{path.stem} has no {usual!r} any more"
        for cell in notebook.cells:
            cell.source = cell.source.replace(usual, fewer)
    nbformat.write(notebook, folder / path.name)
    given = dict(word.split("=") for word in SMALLER.get(files.number(path), "").split())
    values = chosen(parameters(path), given, path.stem)
    found = execution.execute(folder / path.name, values, tmp_path)
    assert not found.failed, found.failed
    assert all((tmp_path / f"{report.name}.json").exists() for report in found.reports)
    listed = tomllib.loads(files.ours("data/experiments.toml").read_text())["experiment"]
    named = {one["report"] for one in listed if one["lesson"] == path.stem and "report" in one}
    assert named <= {report.name for report in found.reports}, (
        "data/experiments.toml names a report that is not kept"
    )
    done = nbformat.read(tmp_path / path.name, as_version=4)
    assert all(c.execution_count for c in done.cells if c.cell_type == "code" and c.source.strip())
    for stub, asked in itertools.pairwise(done.cells):
        if "exercise" in stub.metadata.get("tags", ()):
            assert STUB in "".join(o.get("data", {}).get("text/plain", "") for o in asked.outputs), (
                asked.source
            )

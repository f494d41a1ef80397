"""Every lesson runs top to bottom, in a copy, so that the committed outputs stay as they are."""

from __future__ import annotations

import shutil

import nbformat
import pytest

from labkit import files
from tools import notebooks

# minutes at the sizes of their saved outputs; a reader may choose others, so they have to run at others as well;
# the checks of the ledger have tests of their own
SMALLER = {
    "02_inplace_vs_functional": {
        "{name: gradients(name) for name in FUNCTIONAL}": "{name: gradients(name) for name in list(FUNCTIONAL)[:2]}",
    },
    "04_graph_break_cliff": {"Config(blocks=40)": "Config(blocks=2)", "rounds=30": "rounds=8"},
    "05_eager_trap": {"Config(blocks=40)": "Config(blocks=2)", "rounds=20": "rounds=8"},
    "07_streams_in_compile": {
        '"07_streams_in_compile"]': '"07_streams_in_compile"][:1]',
    },
    "08_rank_symmetry": {
        "divergence.run(ranks, drills=": "divergence.run(ranks, 'shape flag branch order break inputs recompile'"
        ".split(), drills=",
        '"contract.")]': '"contract.")][:1]',
    },
    "09_guards_and_shapes": {
        '"eager": 12, "inductor": 3': '"eager": 2, "inductor": 1',
        "(1, 2, 4, 8, 12), 8": "(1, 2, 4, 8), 2",
    },
    "10_dtensor_or_explicit": {
        'mlp=("tiny", "large"), rounds=12': 'mlp=("tiny",), rounds=4',
        "worlds=[2, 4, 16, 128, 1024], also=()": "worlds=[2, 4, 1024], also=(), rounds=8",
        'claims.choose("10", rows)': 'claims.choose("10", rows)[:1]',
    },
    "11_mesh_or_world": {
        "mesh_or_world.run(ranks)": "mesh_or_world.run(ranks, rounds=8, steps=2)",
        'claims.choose("11")': 'claims.choose("11")[:1]',
    },
    "12_cold_and_warm": {
        "survival.run(ranks)": 'survival.run(ranks, ["second process", "AOT-precompiled"])',
        'claims.choose("12", ["t12.*", "soc.*"])': 'claims.choose("12", ["t12.*", "soc.*"])[:1]',
    },
    "13_training": {
        'if "list" not in hook]': "if hook in (*backward.HOOKS[:2], backward.HOOKS[4], backward.HOOKS[-1])]",
        "drills.run(ranks)": "drills.run(ranks, ['fewer batches', 'captured hook'])",
        "training.run(ranks, steps=2)": "training.run(ranks, steps=1)",
        "curves.run(ranks, steps=100, seen=grow)": "curves.run(ranks, steps=40, every=10, seen=grow)",
        'claims.choose("13", ["t12.*", "soc.*"])': 'claims.choose("13", ["t12.*", "soc.*"])[:1]',
    },
    "19_ledger": {"seconds=8": "seconds=3"},
}

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_there_are_lessons():
    assert files.lessons(), "no notebooks found in notebooks/"


@pytest.mark.parametrize("path", files.lessons(), ids=lambda path: path.stem)
def test_the_lesson_runs_top_to_bottom(path, tmp_path):
    folder = tmp_path / "notebooks"
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    notebook = nbformat.read(folder / path.name, as_version=4)
    smaller = SMALLER.get(path.stem, {})
    for usual in smaller:
        assert any(usual in cell.source for cell in notebook.cells), f"{path.stem} has no {usual!r} any more"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            for usual, less in smaller.items():
                cell.source = cell.source.replace(usual, less)
    done = notebooks.run(notebook, folder, path.name)
    errors = [o for c in done.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert not errors
    assert all(c.execution_count for c in done.cells if c.cell_type == "code" and c.source.strip())

"""notebooks/in_a_hurry.ipynb: it runs from top to bottom, and its benches show what its text says, for all values."""

from __future__ import annotations

import nbformat
import pytest
import torch
from nbformat import v4

from labkit import files
from tools import notebooks

NEW = torch.__version__.split("+")[0] >= "2.14"
ALL = r"""
def operators(form, line):
    rows = annotate(graphs(form)).listing.sections[0].rows
    (row,) = [one for one in rows if one.text.strip().startswith(line)]
    return [one.name for one in row.operators[""]["Dynamo"]]


LOSSES = "sum of the ranks' losses", "one, on every rank"
{
    "graphs": {form: 1 + graphs(form)[0].counts[0].breaks for form in ("functional", "in place", "async")},
    "operators": operators("in place", "dist.all_reduce"),
    "regions": {n: regions(n)[0].counts[0].regions for n in (0, 1, 2, 4, 8)},
    "boxes": hiding.every("hidden_calls").picture.count("<span"),
    "dispatched": {form: operations(form) for form in ("in place", "functional")},
    "order": [order(form, passes) for form in ("functional", "in place") for passes in ("none", "sink_waits")],
    "multiples": {
        (loss, form, compiled): multiples(form, compiled, loss)
        for loss in LOSSES for form in ("functional", "in place") for compiled in (False, True)
    },
    "verdicts": [between("mm all_reduce_ mm mm wait_tensor mm"), between("mm all_reduce_ wait_tensor mm mm")]
    + [read(multiples("in place", compiled, loss)) for loss in LOSSES for compiled in (False, True)],
}
"""
EDIT = "number in hide", "number in hide or dist.get_rank() == 0"


def values(cell):
    (shown,) = (one["data"]["text/plain"] for one in cell.outputs if one.output_type == "execute_result")
    return eval(shown)


@pytest.mark.slow
@pytest.mark.kernel
def test_it_runs_and_its_benches_show_what_it_says(tmp_path):
    lesson = nbformat.read(files.ours("notebooks/in_a_hurry.ipynb"), as_version=4)
    code = [cell for cell in lesson.cells if cell.cell_type == "code"]
    assert len(code) == 5
    words = [cell.source for cell in lesson.cells if cell.cell_type == "markdown"]
    assert sum(len(text.split()) for text in words) <= 700 and EDIT[1] in words[-1]
    (hidden,) = (cell.source for cell in code if "def eight_layers" in cell.source)
    assert hidden.count(EDIT[0]) == 1
    more = [ALL, hidden.replace(*EDIT), "[regions(0)[rank].counts[0].regions for rank in range(2)]"]
    lesson.cells += [v4.new_code_cell(source) for source in more]
    notebooks.run(lesson, tmp_path, "in_a_hurry", timeout=300)
    every, lanes = values(lesson.cells[-3]), values(lesson.cells[-1])

    assert every["graphs"] == {"functional": 1, "in place": 1, "async": 3}
    assert ".copy_" in every["operators"] and "_c10d_functional.all_reduce" in every["operators"]
    assert every["regions"] == {0: 1, 1: 9, 2: 10, 4: 12, 8: 16}
    assert every["boxes"] == 2 * (1 + 9 + 10 + 12 + 16)  # on each rank
    assert every["dispatched"]["in place"] == "allreduce_ neg"
    copies = every["dispatched"]["functional"].split()
    assert {"clone", "wait_tensor"} <= {*copies} and copies.count("neg") == 2 and len(copies) > 3
    moved = "mm all_reduce_ mm mm wait_tensor"
    assert every["order"] == [moved if NEW else "mm all_reduce_ wait_tensor mm mm", moved] * 2
    total, one = "sum of the ranks' losses", "one, on every rank"
    for form, compiled in (("functional", False), ("functional", True), ("in place", True)):
        assert every["multiples"][total, form, compiled] == "1× 1×"
        assert every["multiples"][one, form, compiled] == "2× 2×"
    warned = every["multiples"][total, "in place", False]
    assert warned.count("warned") == 2 and not warned.startswith("1×")
    assert every["multiples"][one, "in place", False] == "1×,warned 1×,warned"
    assert every["verdicts"] == [2, 0, "less than 1×", "1×", "1×", "2×"]
    assert lanes == [16, 1]

"""The programs of the lessons: a copy that nobody edited is the lesson's own, and no other cell changes its names."""

from __future__ import annotations

import ast
import json

import lesson_cells
import pytest

from course.shared import program
from labkit import files, lessons

# the topics whose lessons have cells tagged `program`, and the notebooks
LESSONS = {
    "functional": "02_inplace_vs_functional",
    "cliff": "04_graph_break_cliff",
    "trap": "05_eager_trap",
    "streams": "06_streams_and_events",
    "offload": "07b_activation_offloading",
    "guards": "09_guards_and_shapes",
    "dtensor": "10_tensor_parallel_training",
    "dtensor_compiled": "10b_dtensor_compiled",
    "mesh": "11_mesh_or_world",
    "cold": "12_cold_and_warm",
    "break_it": "15_break_it",
    "scale": "16_beyond_this_machine",
    "since": "17_one_compile",
    "repair": "18_repair_it",
}


@pytest.mark.parametrize("topic", LESSONS)
def test_cells_that_nobody_edited_are_the_lessons_own_and_no_other_cell_changes_their_names(topic):
    """Tables of functions included."""
    own, lesson = lessons.program(topic), LESSONS[topic]
    found = program.choose(topic, lesson_cells.copied(lesson), own.__program__)
    assert (found.edited, found.digest) == ((), program.choose(topic, None, ()).digest)
    notebook = json.loads((files.ours("notebooks") / f"{lesson}.ipynb").read_text())
    bound: dict[bool, set[str]] = {True: set(), False: set()}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%"):
            bound["program" in cell["metadata"].get("tags", ())].update(lessons.names_of(ast.parse(source)))
    assert not bound[True] & bound[False]

"""Every protocol measures the program that it is given: a reader who edits a cell sees another figure."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lesson_cells
import pytest

from course.shared import program
from labkit import experiments, files, lessons
from labkit.ranks import Ranks
from labkit.report import Report

# the topics whose lessons have cells tagged `program`, and the notebooks
LESSONS = {
    "functional": "02_inplace_vs_functional",
    "cliff": "04_graph_break_cliff",
    "trap": "05_eager_trap",
    "streams": "06_streams_and_events",
    "compiled_streams": "07_streams_in_compile",
    "guards": "09_guards_and_shapes",
    "dtensor": "10_dtensor_or_explicit",
    "mesh": "11_mesh_or_world",
    "cold": "12_cold_and_warm",
    "break_it": "15_break_it",
    "scale": "16_beyond_this_machine",
    "since": "17_one_compile",
    "repair": "18_repair_it",
}
PROTOCOLS = [one for one in experiments.declared().values() if one.module.partition(".")[0] in LESSONS]


@pytest.mark.parametrize("about", PROTOCOLS, ids=lambda about: about.name)
def test_a_protocol_takes_its_program_as_an_argument(about):
    run = importlib.import_module(f"course.{about.module}").run
    given = inspect.signature(run).parameters["program"]
    assert given.default is None and given.kind is inspect.Parameter.KEYWORD_ONLY
    assert "`globals()`" in run.__doc__ or "None for the lesson's own" in run.__doc__


@pytest.mark.parametrize("topic", LESSONS)
def test_cells_that_nobody_edited_are_the_lessons_own_tables_of_functions_included(topic):
    own = lessons.program(topic)
    found = program.choose(topic, lesson_cells.copied(LESSONS[topic]), own.__program__)
    assert (found.edited, found.digest) == ((), program.choose(topic, None, ()).digest)


@pytest.mark.parametrize("lesson", LESSONS.values())
def test_no_other_cell_gives_a_name_of_the_program_another_meaning(lesson):
    notebook = json.loads((files.ours("notebooks") / f"{lesson}.ipynb").read_text())
    bound: dict[bool, set[str]] = {True: set(), False: set()}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%"):
            bound["program" in cell["metadata"].get("tags", ())].update(lessons.names_of(ast.parse(source)))
    assert not bound[True] & bound[False]


@dataclass
class Edit:
    """What a reader changes in a lesson, the call that measures it, and a count that tells whether it did.

    Attributes:
        topic: whose lesson.
        before: a text that stands once in its program.
        after: what the reader wrote there.
        names: what the report says was edited.
        call: runs the protocol, of ranks, a folder and further arguments.
        count: reads the number from the report.
        counts: the number in the lesson, and with the edit.
    """

    topic: str
    before: str
    after: str
    names: str
    call: Callable[..., Report]
    count: Callable[[Report], Any]
    counts: tuple[Any, Any]


def _run(name: str, *args: Any, sweep: bool = False, **settings: Any) -> Callable[..., Report]:
    def call(ranks: Ranks, folder: Any, **program: Any) -> Report:
        module = importlib.import_module(f"course.{experiments.get(name).module}")
        return module.run(ranks, *args, **settings, **program, **({"folder": folder} if sweep else {}))

    return call


STATED = {"alpha": 10.0, "bandwidth": 25.0, "overhead": 20.0, "rate": 1e5, "trace": True}
EDITS = {
    "collectives": Edit(
        "functional", "return functional(x * 1) + 0", "return functional(functional(x * 1)) + 0", "forms",
        _run("collectives", ["all_reduce max"]),
        lambda r: r.frame.query("form == 'functional'")["in the graph"].item().count("all_reduce"), (1, 2)),
    "streams": Edit(
        "streams", "a = x @ x @ x\n    b = (x + 1) @ x @ x\n", "a = x @ x\n    b = (x + 1) @ x @ x\n", "one_stream",
        _run("streams"), lambda r: float(r.frame["step"][0]), (18.0, 14.0)),
    "microbatch": Edit(
        "streams", "        dist.all_reduce(y)\n", "        dist.all_reduce(y)\n        dist.all_reduce(y)\n",
        "part_by_part", _run("microbatch"), lambda r: float(r.frame["step"][0]), (29.0, 41.0)),
    "guards": Edit(
        "guards", "(4, 4, 6, 8, 1, 2, 10, 1, 12, 3, 5, 4)", "(4, 4, 4)", "DIMENSIONS",
        _run("guards", ["batch"], ["default"], rounds=0, inductor=0, sweep=True),
        lambda r: r.frame["compiled again"].item(), (2, 0)),
    "a lambda in a table": Edit(
        "guards", "sample(batch=n), {})", "sample(batch=4), {})", "DIMENSIONS",
        _run("guards", ["batch"], ["default"], rounds=0, inductor=0, sweep=True),
        lambda r: r.frame["compiled again"].item(), (2, 0)),
    "depth": Edit(
        "guards", "for _ in range(depth)))", "for _ in range(2 * depth)))", "stack",
        _run("depth", [1, 2], rounds=2, sweep=True),
        lambda r: set(r.tables["graphs"].query("form == 'whole' and depth == 2")["traced"]), ({2}, {4})),
    "placements": Edit(
        "dtensor", ', "P": Partial()}', "}", "PLACEMENTS", _run("placements"), lambda r: len(r.frame), (16, 9)),
    "routes": Edit(
        "dtensor", "return self.reduce(F.linear(hidden, self.down))",
        "return self.reduce(self.reduce(F.linear(hidden, self.down)))", "ExplicitMLP",
        _run("routes", ["tiny"], [], rounds=2),
        lambda r: set(r.tables["counts"].query("way == 'b eager'")["collectives"]), ({1.0}, {2.0})),
    "mesh_or_world": Edit(
        "mesh", "WIDTH, LAYERS, STOP = 64, 4, 0", "WIDTH, LAYERS, STOP = 64, 2, 0", "LAYERS",
        _run("mesh_or_world", rounds=0), lambda r: set(r.frame["mesh"]), ({0, 12}, {0, 6})),
    "scale": Edit(
        "scale", "total += 2 * a.numel()", "total += 4 * a.numel()", "flops", _run("scale", [2], **STATED),
        lambda r: round(r.tables["worlds"]["flops"][0] / 2**20), (386, 770)),
    "cold": Edit(
        "cold", "for _ in range(requests - 1):", "for _ in range(requests):", "serve",
        _run("cold", ["eager"], requests=4, sweep=True), lambda r: len(r.tables["latency"]), (8, 10)),
    "survival": Edit(
        "cold", 'batch(6 if change == "shape" else 4)', "batch(4)", "use",
        _run("survival", ["second process"], ["nothing", "shape"], sweep=True),
        lambda r: list(r.frame["outcome"]), (["hit", "miss"], ["hit", "hit"])),
    "repair": Edit(
        "repair", "blocks: int = 6", "blocks: int = 2", "Settings", _run("repair", ["delivered"], rounds=0),
        lambda r: r.frame["breaks"].item(), (18.0, 6.0)),
    "one_compile": Edit(
        "since", "return summed(y, dist.group.WORLD) if odd else y", "return y", "with_flag",
        _run("one_compile", ["aot_compile"], programs=["08 flag"], sizes=()),
        lambda r: set(r.frame["graphs"]), ({2}, {1})),
    "offload": Edit(
        "compiled_streams", "Layer(shape.width) for _ in range(shape.layers)",
        "Layer(shape.width) for _ in range(2 * shape.layers)", "Model",
        _run("offload", deep=1), lambda r: round(r.frame["step_ms"][0]), (10, 21)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_cell_is_what_a_protocol_measures(name, request, tmp_path):
    edit = EDITS[name]
    ranks = request.getfixturevalue({"mesh": "three", "since": "four"}.get(edit.topic, "ranks"))
    lesson = edit.call(ranks, tmp_path)
    edited = edit.call(
        ranks, tmp_path, program=lesson_cells.copied(LESSONS[edit.topic], (edit.before, edit.after))
    )
    assert (edit.count(lesson), edit.count(edited)) == edit.counts
    assert f"program: {edit.names} edited" in edited.notes
    assert not any(note.startswith("program:") for note in lesson.notes)
    assert edited.provenance["program"] != lesson.provenance["program"]


@pytest.fixture(scope="module")
def three():
    with Ranks(3, device="cpu", backend="gloo", timeout=120, quiet=True) as three:
        yield three


@pytest.fixture(scope="module")
def four():
    with Ranks(4, device="cpu", backend="gloo", timeout=120, quiet=True) as four:
        yield four

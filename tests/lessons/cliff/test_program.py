"""The program of lesson 04: cells as a module and on ranks, and a reader's edited copy of it."""

from __future__ import annotations

import importlib
import json
import linecache
import pickle
import sys
import types
from functools import partial

import lesson_cells
import pytest
from oddrank.record import merge, record

from course.shared import program
from labkit import files, lessons
from labkit.ranks import RankError, here

LESSON = "04_graph_break_cliff"
NEEDED = ("Config", "full", "shard", "inplace", "disabled", "functional")
own = lessons.program("cliff")
copied = partial(lesson_cells.copied, LESSON)


def line_of(text: str) -> str:
    """Where a line stands in the notebook, as `04_graph_break_cliff [cell]:line`."""
    notebook = json.loads((files.ours("notebooks") / f"{LESSON}.ipynb").read_text())
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    ((cell, line),) = [
        (i, n)
        for i, s in enumerate(code, 1)
        for n, one in enumerate(s.splitlines(), 1)
        if one.strip() == text
    ]
    return f"{LESSON} [{cell}]:{line}"


def look(module, reduce, blocks=1):
    import torch

    me = here()
    config = module.Config(blocks=blocks)
    model = torch.compile(module.Model(config, me.world_size, me.rank, reduce), backend="eager")
    with torch.no_grad():
        for _ in range(2):
            model(config.sample())
        with record() as rec, rec.forward():
            model(config.sample())
    return rec


@pytest.mark.slow
def test_break_tables_name_the_cell_and_the_line(shm_ranks):
    breaks = merge(shm_ranks.run(look, own, own.disabled)).breaks.frame()
    norm = line_of("scale = torch.rsqrt(self.reduce(squares) / self.dim + self.eps)")
    linear = line_of("return partial if self.world_size == 1 else self.reduce(partial)")
    assert f"{norm} (RMSNorm.forward)" in set(breaks["place"])
    assert f"{linear} (RowParallelLinear.forward)" in set(breaks["place"])
    assert all(place.startswith(f"{LESSON} [") for place in breaks["place"])


def hides_one(name):
    import torch

    torch._dynamo.reset()
    me = here()
    model = own.Model(own.Config(blocks=8), me.world_size, me.rank)
    getattr(model.blocks[0], name).reduce = own.disabled
    compiled, x = torch.compile(model, backend="eager"), own.Config().sample()
    with torch.no_grad():
        return [own.entered(lambda: compiled(x)) for _ in range(3)][-1]


@pytest.mark.slow
def test_the_regions_that_section_5_names_for_one_hidden_call(shm_ranks):
    for name, regions in (("q_norm", 39), ("out", 31)):
        assert {*shm_ranks.run(hides_one, name).values()} == {regions}


def test_a_traceback_from_a_rank_names_the_cell_and_the_line(shm_ranks):
    with pytest.raises(RankError) as caught:
        shm_ranks.run(own.shard, own.Model(own.Config(), 2, 0), 0, 2)
    where = line_of('raise ValueError("the model is a shard already: cut shards from the full model")')
    assert f"{where} (shard)  raise ValueError(" in str(caught.value)


def test_what_it_defines_travels_by_name():
    config = own.Config(blocks=2)
    for value in (own.Block, own.inplace, own.functional, own.disabled, own.shard, config):
        assert pickle.loads(pickle.dumps(value)) in (value, config)
    assert own.Block.__module__ == "course.cliff.program"
    assert sys.modules[own.Block.__module__] is own is lessons.program("cliff")
    assert b"self.q_norm" not in pickle.dumps(own.Block)


def test_a_copy_that_nobody_edited_is_the_lessons_own():
    lesson = program.choose("cliff", None, NEEDED)
    for given in (own, vars(own), copied(), types.SimpleNamespace(**copied())):
        found = program.choose("cliff", given, NEEDED)
        assert (found.digest, found.edited, found.notes) == (lesson.digest, (), [])


@pytest.mark.parametrize(
    ("edit", "names"),
    [
        (("x = x + self.out(", "x = x + 2 * self.out("), ("Block",)),
        (
            ('@torch.compiler.disable(reason="the collective is hidden from the compiler")\n', ""),
            ("disabled",),
        ),
    ],
)
def test_an_edit_is_named_and_gives_another_hash(edit, names):
    found = program.choose("cliff", copied(edit), NEEDED)
    assert found.edited == names and found.notes == [f"program: {', '.join(names)} edited"]
    assert found.digest != program.choose("cliff", None, NEEDED).digest
    assert found.digest == program.choose("cliff", copied(edit), NEEDED).digest


def test_a_function_that_an_edited_class_calls_belongs_to_the_program():
    def with_helper(body: str) -> program.Program:
        helper = f"def twice(x):\n    return {body}\n\n\nclass Block("
        space = copied(("class Block(", helper))
        return program.choose("cliff", space, NEEDED)

    assert with_helper("2 * x").edited == ()  # nobody calls it

    def called(body: str) -> program.Program:
        source = ("return x + self.down(", "return x + twice(1) * self.down(")
        space = copied(source)
        name = f"/scratch/ipykernel_1/{abs(hash(body))}.py"
        linecache.cache[name] = (1, None, ["def twice(x):\n", f"    return {body}\n"], name)
        exec(compile(f"def twice(x):\n    return {body}\n", name, "exec"), space)
        return program.choose("cliff", space, NEEDED)

    assert called("2 * x").edited == ("Block", "twice")
    assert called("2 * x").digest != called("3 * x").digest


def test_a_program_in_pieces_is_refused():
    space = copied()
    del space["seeded"]
    with pytest.raises(
        ValueError, match="Model of the program uses 'seeded', which is not defined: run the cell"
    ):
        program.choose("cliff", space, NEEDED)
    with pytest.raises(ValueError, match="the program has no 'Config': run the cell that defines it"):
        program.choose("cliff", {}, NEEDED)
    # a block that nobody uses would be reported as edited, and not be measured
    with pytest.raises(ValueError, match="Model of the program uses another Block than the one given"):
        program.choose("cliff", {**vars(own), "Block": copied()["Block"]}, NEEDED)


def notebook(tmp_path, monkeypatch, *sources: str, tags=("program",)) -> None:
    cells = [{"cell_type": "markdown", "source": ["# A lesson"], "metadata": {"tags": ["program"]}}]
    cells += [
        {"cell_type": "code", "source": s.splitlines(keepends=True), "metadata": {"tags": list(tags)}}
        for s in sources
    ]
    (tmp_path / "77_mine.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    monkeypatch.setattr(files, "ours", lambda path: tmp_path)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ((), "lesson 77_mine has no program: no code cell is tagged `program`"),
        (("x = 1", "def f(:\n    pass"), r"77_mine \[2\]:1 of the program is not Python: invalid syntax"),
        (("x = 1\ny = z",), r"77_mine \[1\] of the program failed: NameError: name 'z' is not defined"),
        (("%load_ext labkit",), r"77_mine \[1\]:1 of the program is not Python"),
    ],
)
def test_a_notebook_that_is_no_program_is_named(tmp_path, monkeypatch, sources, message):
    notebook(tmp_path, monkeypatch, *sources)
    with pytest.raises(ValueError, match=message):
        lessons.load("77_mine", {"__name__": "mine"})


def test_a_notebook_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ours", lambda path: tmp_path)
    with pytest.raises(ValueError, match="lesson 77_mine cannot be read: 77_mine.ipynb is missing"):
        lessons.cells("77_mine")
    for text in ("no JSON", "[]", "{}", '{"cells": [1]}'):
        (tmp_path / "77_mine.ipynb").write_text(text)
        with pytest.raises(ValueError, match="lesson 77_mine cannot be read: 77_mine.ipynb is no notebook"):
            lessons.cells("77_mine")


def test_the_cells_share_a_namespace_and_count_only_code(tmp_path, monkeypatch):
    notebook(tmp_path, monkeypatch, "import math\nSIDE = 2", "def area():\n    return SIDE**2")
    space = {"__name__": "mine"}
    lessons.load("77_mine", space)
    assert space["area"]() == 4 and space["__program__"] == ("SIDE", "area")
    assert space["area"].__code__.co_filename == "77_mine [2]" and space["area"].__module__ == "mine"


def test_a_topic_without_a_program_is_named():
    with pytest.raises(ValueError, match="topic 'new_torch' has no program made of the cells of its lesson"):
        lessons.program("new_torch")


def test_an_unknown_topic_is_named():
    with pytest.raises(ValueError, match="unknown topic 'clif': there is start, groups"):
        lessons.program("clif")


def test_it_can_be_loaded_again_in_a_new_module():
    spec = importlib.util.find_spec("course.cliff.program")
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.__program__ == own.__program__ and again.Block is not own.Block

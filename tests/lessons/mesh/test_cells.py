"""What lesson 11 does not show: its mesh against one process, its drills put right, its fence; a figure's words."""

from __future__ import annotations

from types import SimpleNamespace

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the operators, also the older ones

import labkit
from course.mesh import figures
from labkit import lessons

LESSON = "11_mesh_or_world"


@pytest.mark.parametrize("told", [False, True])
def test_ranks_that_call_a_collective_together_share_a_column(told):
    """Rank 0 in the mesh's column, rank 2 in the mesh's and the last, do not call; a request stands where it begins."""
    rows = [
        (0, 0, "world", "broadcast", "2 rows"),
        (0, 1, "world", "broadcast", "stop"),
        (1, 0, "world", "broadcast", "2 rows"),
        (1, 1, "mesh", "all_reduce", "2 rows"),
        (1, 2, "world", "broadcast", "stop"),
        (2, 0, "world", "broadcast", "2 rows"),
    ]
    calls = pd.DataFrame(rows, columns=["rank", "number", "group", "operation", "request"])
    ax = figures.calls_by_group(calls if told else calls[["rank", "number", "group"]]).axes[-1]
    at = {(round(box.get_y()), round(box.get_x())) for box in ax.patches}
    assert {(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)} == at
    written = [text.get_text() for text in ax.texts]
    if told:
        assert written[:2] == ["2 rows", "stop"]
        assert [int(text.get_position()[0]) for text in ax.texts[:2]] == [0, 2]
        assert sorted(written[2:]) == ["B"] * 5 + ["R"] + [figures.OUTSIDE] * 3
    else:
        assert written == [figures.OUTSIDE] * 3


@pytest.mark.slow
def test_the_mesh_computes_what_one_process_would_and_answers_its_members_alone(three):
    """Four layers on the mesh's two ranks against the same layers, whole."""
    found = three.run(_of_the_mesh)
    assert found[0] == "only a member of the group can ask"
    assert all(error < 1e-5 and said == "alike" for error, said in (found[1], found[2]))


def _of_the_mesh():
    program = lessons.program("mesh")
    _, mesh = program.make_groups()
    alone = [dist.new_group([rank]) for rank in range(3)][dist.get_rank()]
    try:
        said = program.compare(1, mesh)
    except AssertionError as error:
        return str(error)
    x = torch.ones(2, program.WIDTH)
    with torch.no_grad():
        return float((program.build(mesh, mesh)(x) - program.build(alone, alone)(x)).abs().max()), said


@pytest.mark.slow
def test_a_drill_without_its_mistake_is_right_under_detail(three):
    """Fresh ranks for each: after a message between some ranks, DETAIL refuses what is right."""
    space = lesson_cells.copied(LESSON) | {"LIMIT_S": 60}
    space = lesson_cells.run(LESSON, "drill-setup", "drill-a", "drill-b", **space)
    for name in ("meets_the_plan", "stays_away"):
        options = {"device": "cpu", "backend": "gloo", "timeout": 240, "stall": None, "quiet": True}
        with labkit.Ranks(3, **options, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as detail:
            plain, checked = (
                list(where.run(space["play"], space[name], space["first"]).values())
                for where in (three, detail)
            )
        assert plain == checked, name


def test_the_fence_reads_any_collective_that_has_a_group_in_its_schema():
    fence = lesson_cells.run(LESSON, "ex-solution", torch=torch)["my_fence_solution"]
    backend = fence(SimpleNamespace(group_name="1"))
    one_shot, legacy = torch.ops.symm_mem.one_shot_all_reduce, torch.ops.c10d_functional.all_reduce
    for op, rest, passes in (
        (one_shot, ("sum", "1"), True),
        (one_shot.default, ("sum", "11"), False),
        (legacy, ("sum", "", [0, 1], 2), False),  # names ranks, and no group
    ):
        graph = torch.fx.Graph()
        graph.output(graph.call_function(op, (graph.placeholder("x"), *rest)))
        module = torch.fx.GraphModule({}, graph)
        if passes:
            assert callable(backend(module, []))
        else:
            with pytest.raises(RuntimeError, match="not for '1'"):
                backend(module, [])

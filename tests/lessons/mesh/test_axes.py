"""The contracts of a mesh's axes on other sizes and meshes than lesson 11's; the log of its exercise."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import labkit
from labkit import files, lessons

NO_ERROR, WRONG = 1e-5, 0.1  # relative to the gradient; float32


@pytest.fixture(scope="module")
def six():
    with labkit.Ranks(6, device="cpu", backend="gloo", timeout=400, stall=4.0, quiet=True) as ranks:
        yield ranks


def _trained(shape, width, rows, mistake):
    program = lessons.program("mesh")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    torch._dynamo.reset()
    facts, error = program.train(mesh, width, rows, mistake)
    return program.broken(mesh, facts), error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "mistake", "broken"),
    [
        ((3, 2), None, []),
        ((2, 3), None, []),
        ((3, 2), "input by rank", ["input along tp"]),
        ((2, 3), "mean over tp", ["the same gradients along tp", "weights along dp"]),
        ((3, 2), "mean over the world", ["the same gradients along tp"]),  # the weights agree, and are wrong
    ],
)
def test_each_axis_finds_what_breaks_its_own_contract(six, shape, mistake, broken):
    found, errors = zip(*six.run(_trained, shape, 18, 5, mistake).values(), strict=True)
    assert found == (broken,) * 6
    assert max(errors) > WRONG if mistake else max(errors) < NO_ERROR


def _refused(shape, mistake):
    try:
        return _trained(shape, 18, 5, mistake)
    except RuntimeError as error:
        return str(error)


@pytest.mark.slow
def test_a_sum_over_another_group_on_one_rank_is_refused_on_all_before_it_runs(six):
    right, wrong = "all_reduce sum tp (5, 18) torch.float32", "all_reduce sum dp (5, 18) torch.float32"
    for said in six.run(_refused, (2, 3), "sum over dp on one rank").values():
        assert said.count(right) == 5 and said.count(wrong) == 1


def _captured(wrong_on):
    """On a rank: the calls of a graph with a sum in a checkpoint, by the roles of the groups."""
    program, calls = lessons.program("mesh"), []
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = (mesh[axis].get_group() for axis in ("dp", "tp"))
    group = dp if dist.get_rank() == wrong_on else tp

    def keep(graph, inputs):
        calls.extend(program.calls_of(graph, dp=dp, tp=tp, outside=dist.GroupMember.NON_GROUP_MEMBER))
        raise InterruptedError  # it is not run: one rank names another group

    def step(x):
        return checkpoint(lambda x: program.funcol.all_reduce(x, "sum", group).sin(), x, use_reentrant=False)

    torch._dynamo.reset()
    with contextlib.suppress(Exception):
        torch.compile(step, backend=keep, fullgraph=True)(torch.ones(4, 3))
    return calls


@pytest.mark.slow
def test_the_calls_of_a_graph_name_the_role_of_the_group_also_in_a_checkpoint(six):
    found = six.run(_captured, 4)
    assert "all_reduce sum tp (4, 3) torch.float32" in found[0]
    assert "all_reduce sum dp (4, 3) torch.float32" in found[4]
    assert all((calls == found[0]) == (rank != 4) for rank, calls in found.items())


def _members(by_rank):
    """On a rank: what the check at start says of the axes' groups, where some ranks have another for tp."""
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = (mesh[axis].get_group() for axis in ("dp", "tp"))
    outside = dist.new_group([0])
    other = {"dp": dp, "world": None, "outside": outside}.get(by_rank.get(dist.get_rank()), tp)
    try:
        lessons.program("mesh").check_members(dp=dp, tp=other, first=outside)
    except RuntimeError as error:
        return str(error)
    return "passes"


@pytest.mark.slow
def test_the_check_at_start_finds_another_group_on_one_rank_and_raises_on_all(six):
    assert set(six.run(_members, {}).values()) == {"passes"}
    for by_rank, members in (
        ({3: "dp"}, "3: [1, 3, 5]"),
        ({2: "world"}, "2: [0, 1, 2, 3, 4, 5]"),
        ({5: "outside"}, "4: [4, 5]}"),  # rank 5 has no group, and is a member for rank 4
    ):
        (said,) = set(six.run(_members, by_rank).values())
        assert members in said and "'tp'" in said


def _compiled(job):
    """On a rank: the collectives and divisions in the graph of a job, as its log has them; and the loss, if it ends."""
    text = files.ours("data/captured/mesh_job.py.txt").read_text()
    names = {"__name__": "job"}
    exec(compile(text, "mesh_job.py", "exec"), names)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    lines = []

    def keep(graph, inputs):
        for node in graph.graph.nodes:
            name = str(node.target).rpartition(".")[2].removeprefix("<built-in function ").rstrip(">")
            if name in ("all_reduce", "truediv"):
                lines.append(f"%{node.name} = {name}({tuple(node.args)})".replace("'", ""))
        if job in "AB":
            raise InterruptedError  # it would not end
        return graph

    torch._dynamo.reset()
    size = names["BATCH"], names["WIDTH"]
    data = torch.randn(2, *size, generator=torch.Generator().manual_seed(5))
    x = data[dist.get_rank() % 2 if job == "C" else mesh["dp"].get_local_rank()]
    step = torch.compile(names["layer_of"](job, mesh), backend=keep, fullgraph=True)
    with torch.no_grad(), contextlib.suppress(Exception):
        lines.append(f"loss {step(x, torch.zeros(()))[0]:.5f}")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("job", "ABCD")
def test_the_log_of_the_exercise_is_what_its_program_does(job):
    with labkit.Ranks(
        4, device="cpu", backend="gloo", timeout=240, quiet=True
    ) as four:  # groups count from 1
        made = four.run(_compiled, job)
    log = files.ours("data/captured/mesh_jobs.log").read_text()
    for rank, lines in made.items():
        part = log.split(f"######## job {job}, rank {rank}\n")[1].split("########")[0]
        kept = [line for line in part.replace("%", "").splitlines() if " = " in line]
        assert [line.replace("%", "") for line in lines if " = " in line] == kept
        assert all(line in part for line in lines if line.startswith("loss"))
        assert len(lines) == len(kept) + (job in "CD")

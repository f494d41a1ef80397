"""The contracts of a mesh's axes and the order of groups, on other models, sizes and meshes than the lesson's."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import labkit
from labkit import files, lessons
from labkit.ranks import RankError

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
    for found, error in six.run(_trained, shape, 18, 5, mistake).values():
        assert found == broken
        assert error < NO_ERROR if mistake is None else True
    if mistake:
        assert max(error for _, error in six.run(_trained, shape, 18, 5, mistake).values()) > WRONG


def _refused(shape, mistake):
    try:
        return _trained(shape, 18, 5, mistake)
    except RuntimeError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_a_sum_over_another_group_on_one_rank_is_refused_on_all_before_it_runs(six, shape):
    right, wrong = "all_reduce sum tp (5, 18) torch.float32", "all_reduce sum dp (5, 18) torch.float32"
    for said in six.run(_refused, shape, "sum over dp on one rank").values():
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


def _in_a_row(orders, later):
    """On a rank: reduce over the axes of a 3 x 2 mesh in this rank's order."""
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
    x = {axis: torch.ones(1000) for axis in ("dp", "tp")}
    works = [
        dist.all_reduce(x[a], group=mesh[a].get_group(), async_op=later) for a in orders[dist.get_rank()]
    ]
    if later:
        for work in works:
            work.wait()
    return x["dp"][0].item(), x["tp"][0].item()


@pytest.mark.slow
def test_a_ring_of_waits_needs_more_than_one_rank_in_another_order(six):
    one, ring = [["tp", "dp"]] * 6, [["tp", "dp"]] * 6
    one[1] = ring[1] = ring[2] = [
        "dp",
        "tp",
    ]  # 0 waits for 1 in tp, 1 for 3 in dp, 3 for 2 in tp, 2 for 0 in dp
    assert set(six.run(_in_a_row, one, False).values()) == {(3.0, 2.0)}
    assert set(six.run(_in_a_row, ring, True).values()) == {(3.0, 2.0)}
    with pytest.raises(RankError) as caught:
        six.run(_in_a_row, ring, False)
    assert caught.value.ended == "stalled"


def _outsider(members):
    """On a rank: its sums over its group and over the world, where a rank outside has None for the group."""
    group = dist.new_group(members)
    inside = dist.get_rank() in members
    mine, ones = torch.full((3,), 100.0), torch.ones(3)
    dist.all_reduce(mine, group=group if inside else None)
    if inside:
        dist.all_reduce(ones)
    return mine[0].item(), ones[0].item()


@pytest.mark.slow
def test_a_rank_outside_that_has_none_for_the_group_calls_the_world_unnoticed(six):
    for rank, found in six.run(_outsider, [0, 2, 5]).items():
        assert found == ((300.0, 303.0) if rank in (0, 2, 5) else (303.0, 1.0))


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
@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        ({}, "passes"),
        ({3: "dp"}, "3: [1, 3, 5]"),
        ({2: "world"}, "2: [0, 1, 2, 3, 4, 5]"),
        ({5: "outside"}, "4: [4, 5]}"),  # rank 5 has no group, and is a member for rank 4
    ],
)
def test_the_check_at_start_finds_another_group_on_one_rank_and_raises_on_all(six, by_rank, said):
    (found,) = set(six.run(_members, by_rank).values())
    assert said in found and ("passes" == found or "'tp'" in found)


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
    with labkit.Ranks(4, device="cpu", backend="gloo", timeout=240, quiet=True) as four:
        made = four.run(_compiled, job)
    log = files.ours("data/captured/mesh_jobs.log").read_text()
    for rank, lines in made.items():
        part = log.split(f"######## job {job}, rank {rank}\n")[1].split("########")[0]
        kept = [line for line in part.replace("%", "").splitlines() if " = " in line]
        assert [line.replace("%", "") for line in lines if " = " in line] == kept
        assert all(line in part for line in lines if line.startswith("loss"))
        assert len(lines) == len(kept) + (job in "CD")

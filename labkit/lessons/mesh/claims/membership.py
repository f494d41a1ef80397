"""Who is in whose group: a rank outside the mesh, a call by one that is no member, and a call to the wrong group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from labkit import contract, lessons
from labkit.lessons.shared.outcomes import drill
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol

program = lessons.program("mesh")


@probe
def mesh_and_world(bench: Bench) -> Seen:
    """Three ranks, of which 1 and 2 form a mesh that compiles and rank 0 stays outside."""
    ranks = bench.ranks(3)
    return {
        "outside": drill(ranks, _rank_zero_outside),
        "refused": drill(ranks, _refused),
        "stranger": drill(ranks, _stranger),
        "world_inside": drill(ranks, _world_inside),
    }


def _rank_zero_outside() -> Seen:
    """Two calls: rank 0 gives the input over the world, ranks 1 and 2 compile and reduce it among themselves."""
    world = contract.Exchange.connect("check-mesh")
    mesh = contract.Domain.define(world, "mesh", [1, 2])
    dynamo_reset()
    run = torch.compile(
        lambda x: funcol.all_reduce(x * 2, "sum", mesh.group), backend=mesh.backend("eager"), fullgraph=True
    )
    values = []
    _, mark = program.calls_since()
    with torch.no_grad(), contract.compile_health() as health:
        for i in range(2):
            x = torch.full((2,), float(i + 1)) if world.rank == 0 else torch.empty(2)
            dist.broadcast(x, 0)
            values.append((run(x) + 0)[0].item() if world.rank else x[0].item())
    calls, _ = program.calls_since(mark)
    return {
        "graphs": health.graphs,
        "values": values,
        "called": sum(group == "mesh" for group, _ in calls),
        "in_the_mesh": _alike(mesh.exchange, health) if mesh.member else "outside",
        "in_the_world": _alike(world, health),
    }


def _alike(exchange: Any, health: Any) -> str:
    try:
        contract.assert_same_health(exchange, health)
        return "alike"
    except contract.HealthError:
        return "refused"


def _refused() -> str:
    """Every rank enters the mesh's code, and the mesh's exchange."""
    mesh = contract.Domain.define(contract.Exchange.connect("check-refused"), "mesh", [1, 2])
    said = []
    for enter in (lambda: mesh.exchange.gather("rank", mesh.rank), lambda: _reduce(mesh)):
        try:
            enter()
            said.append("is in it")
        except contract.WrongGroup as error:
            said.append(str(error))
    dist.barrier()  # the ranks inside did not wait for the one outside
    return "; ".join(said)


def _reduce(mesh: Any) -> None:
    with mesh.inside():
        dist.all_reduce(torch.ones(2), group=mesh.group)


def _stranger() -> Seen:
    inner = dist.new_group([1, 2])
    x = torch.ones(2)
    dist.all_reduce(x, group=inner)
    return {"value": x[0].item()}


def _world_inside() -> float:
    x = torch.ones(2)
    if dist.get_rank():
        dist.all_reduce(x)  # meant for the mesh, and asked of the world
    else:
        dist.recv(x, 1)
    return x[0].item()


@judging(mesh_and_world)
def rank_zero_may_stay_outside(seen: Seen) -> Result:
    """A rank outside the mesh runs without the mesh's graphs, while the ranks inside are alike."""
    row = seen["outside"]
    values = row.get("values", [])
    graphs = [v["graphs"] for v in values]
    right = [v["values"] for v in values] == [[1, 2], [4, 8], [4, 8]]
    return verdict(graphs == [0, 1, 1] and right, f"graphs by rank {graphs}" if values else row["how"])


@judging(mesh_and_world, word=ENFORCED)
def symmetry_is_of_a_group(seen: Seen) -> Result:
    """What was compiled is alike within the mesh, and refused where the same is asked of the world."""
    row = seen["outside"]
    values = row.get("values", [])
    mesh, world = ([v[where] for v in values] for where in ("in_the_mesh", "in_the_world"))
    right = mesh == ["outside", "alike", "alike"] and world == ["refused"] * 3
    return verdict(right, f"by rank, in the mesh: {mesh}; in the world: {world}" if values else row["how"])


@judging(mesh_and_world)
def the_mesh_is_alike(seen: Seen) -> Result:
    """The ranks inside compile as much, and call as many collectives of the mesh; the one outside none."""
    row = seen["outside"]
    values = row.get("values", [])
    found = [(v["graphs"], v["called"]) for v in values]
    right = len(set(found[1:])) == 1 and found[1][1] > 0 and found[0] == (0, 0)
    said = f"graphs and collectives of the mesh by rank: {', '.join(f'{g} and {c}' for g, c in found)}"
    return verdict(right, said if values else row["how"])


@judging(mesh_and_world, word=ENFORCED)
def who_is_outside_is_refused(seen: Seen) -> Result:
    """A rank outside that enters the mesh's code, or its exchange, is refused before it can wait for anybody."""
    row = seen["refused"]
    zero, *others = row.get("values") or [row["how"]]
    right = zero.count("rank 0 is outside of 'mesh'") == 2 and others == ["is in it; is in it"] * 2
    return verdict(right, zero)


@judging(mesh_and_world)
def a_stranger_deadlocks(seen: Seen) -> Result:
    """A rank that calls a collective of a group it is not in blocks."""
    row = seen["stranger"]
    said = "finished: the call of the rank outside does nothing" if row["how"] == "finished" else row["how"]
    return verdict(row["how"] == "hung", said)


@judging(mesh_and_world)
def the_wrong_group_deadlocks(seen: Seen) -> Result:
    """A collective of the world inside the mesh's part blocks."""
    row = seen["world_inside"]
    return verdict(row["how"] == "hung", row["how"])

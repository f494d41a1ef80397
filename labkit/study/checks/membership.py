"""Who is in whose group: a rank outside the mesh, a call by one that is no member, and a call to the wrong group."""

from __future__ import annotations

from labkit.study.checks.base import Bench, Result, Seen, judging, probe, verdict
from labkit.study.checks.capture import Capture
from labkit.study.checks.symmetry import drill


@probe
def mesh_and_world(bench: Bench) -> Seen:
    """Three ranks, of which 1 and 2 form a mesh that compiles and rank 0 stays outside."""
    ranks = bench.ranks(3)
    return {
        "outside": drill(ranks, _rank_zero_outside),
        "stranger": drill(ranks, _stranger),
        "world_inside": drill(ranks, _world_inside),
    }


def _rank_zero_outside() -> Seen:
    import torch
    import torch.distributed as dist

    from labkit.torch_compat import dynamo_reset, funcol

    inner = dist.new_group([1, 2])
    dynamo_reset()
    graphs = Capture()
    run = torch.compile(lambda x: funcol.all_reduce(x * 2, "sum", inner), backend=graphs, fullgraph=True)
    values = []
    with torch.no_grad():
        for i in range(2):
            x = torch.full((2,), float(i + 1)) if dist.get_rank() == 0 else torch.empty(2)
            dist.broadcast(x, 0)
            values.append((run(x) + 0)[0].item() if dist.get_rank() else x[0].item())
    return {"graphs": len(graphs.dynamo), "values": values}


def _stranger() -> Seen:
    import torch
    import torch.distributed as dist

    inner = dist.new_group([1, 2])
    x = torch.ones(2)
    dist.all_reduce(x, group=inner)
    return {"value": x[0].item()}


def _world_inside() -> float:
    import torch
    import torch.distributed as dist

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

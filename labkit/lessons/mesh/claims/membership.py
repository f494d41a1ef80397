"""Who is in whose group: a rank outside the mesh, a call by one that is no member, and a call to the wrong group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from labkit import contract, lessons
from labkit.lessons.shared.outcomes import all_of, drill
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol

program = lessons.program("mesh")


@probe
def mesh_and_world(bench: Bench) -> Seen:
    """Three ranks, of which 1 and 2 form a mesh that compiles and rank 0 stays outside."""
    ranks = bench.ranks(3)
    return {
        "served": drill(ranks, _served),
        "outside": drill(ranks, _rank_zero_outside),
        "unlike": drill(ranks, _unlike),
        "refused": drill(ranks, _refused),
        "stranger": {name: drill(ranks, _stranger, name) for name in CALLS},
        "world_inside": drill(ranks, _reduces_within, ()),
        "member_by_mistake": drill(ranks, _reduces_within, (0, 1, 2)),
        "right_members": drill(ranks, _reduces_within, (1, 2)),
    }


def _served() -> Seen:
    """The lesson's program: rank 0 compiles its stage, ranks 1 and 2 the mesh's layers, and two requests."""
    found = program.serve((2, 4), stage_compiles=True)
    found["calls"] = sum(group == "mesh" for group, _ in found["calls"])
    return found


def _unlike() -> str:
    """Rank 2 compiles once more than rank 1, and the mesh compares."""
    mesh = contract.Domain.define(contract.Exchange.connect("check-unlike"), "mesh", [1, 2])
    if not mesh.member:
        return "outside"
    dynamo_reset()
    with contract.compile_health() as health:
        for number in range(mesh.rank):
            torch.compile(lambda x, n=number: x + n, backend="eager")(torch.ones(2))
    return _alike(mesh.exchange, health)


def _rank_zero_outside() -> Seen:
    """Two calls: rank 0 gives the input over the world, ranks 1 and 2 compile and reduce it among themselves."""
    world = contract.Exchange.connect("check-mesh")
    mesh = contract.Domain.define(world, "mesh", [1, 2])
    dynamo_reset()
    run = torch.compile(
        lambda x: funcol.all_reduce(x * 2, "sum", mesh.group), backend=mesh.backend("eager"), fullgraph=True
    )
    values = []
    with torch.no_grad(), contract.compile_health() as health:
        for i in range(2):
            x = torch.full((2,), float(i + 1)) if world.rank == 0 else torch.empty(2)
            dist.broadcast(x, 0)
            values.append((run(x) + 0)[0].item() if world.rank else x[0].item())
    return {
        "graphs": health.graphs,
        "values": values,
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


CALLS = {
    "all_reduce": lambda x, group: dist.all_reduce(x, group=group),
    "broadcast": lambda x, group: dist.broadcast(x, 1, group=group),
    "barrier": lambda x, group: dist.barrier(group=group),
    "send": lambda x, group: dist.send(x, 1, group=group),
    "functional": lambda x, group: funcol.all_reduce(x, "sum", group) + 0,
}


def _stranger(name: str) -> bool:
    """All ranks, rank 0 as well, call a collective of the group of ranks 1 and 2; in a send only rank 0 does."""
    inner, x = dist.new_group([1, 2]), torch.ones(2)
    if name != "send" or not dist.get_rank():
        CALLS[name](x, inner)
    return True


def _reduces_within(members: tuple[int, ...]) -> float:
    """Ranks 1 and 2 reduce in the group of these members, of the world for none, and rank 0 waits for the result."""
    group, x = dist.new_group(list(members)) if members else None, torch.ones(2)
    if dist.get_rank():
        dist.all_reduce(x, group=group)
    if dist.get_rank() < 2:
        dist.send(x, 0) if dist.get_rank() else dist.recv(x, 1)
    return x[0].item()


def _driven(seen: Seen) -> Result:
    """Whether the ranks inside compile and reduce, and the one outside does not, with the right numbers."""
    row = seen["outside"]
    graphs = [v["graphs"] for v in row.get("values", [])]
    right = [v["values"] for v in row.get("values", [])] == [[1, 2], [4, 8], [4, 8]]
    said = f"as a driver graphs by rank {graphs}, numbers {'right' if right else 'not right'}"
    return verdict(graphs == [0, 1, 1] and right, said if graphs else row["how"])


@judging(mesh_and_world)
def rank_zero_may_stay_outside(seen: Seen) -> Result:
    """A rank outside serves requests with other graphs than the ranks inside, or with none; the numbers are right."""
    served = seen["served"].get("values")
    if not served:
        return verdict(False, seen["served"]["how"])
    zero, one = ([op for graph in served[rank]["graphs"] for op in graph] for rank in (0, 1))
    other = bool(zero) and not {"all_reduce", "matmul"} & set(zero) and "all_reduce" in one
    answers = {tuple(v["answers"]) for v in served}
    said = f"as a stage rank 0 compiles {', '.join(dict.fromkeys(zero))}, rank 1 {len(one)} operations"
    return all_of(verdict(other and len(answers) == 1, said), _driven(seen))


@judging(mesh_and_world, word=ENFORCED)
def symmetry_is_of_a_group(seen: Seen) -> Result:
    """What was compiled is alike in the mesh, and refused where its ranks differ; the world need not be alike."""
    row, unlike = seen["outside"], seen["unlike"].get("values")
    mesh, world = ([v[where] for v in row.get("values", [])] for where in ("in_the_mesh", "in_the_world"))
    right = mesh == ["outside", "alike", "alike"] and world == ["refused"] * 3
    said = f"by rank, in the mesh: {mesh}; in the world: {world}; in a mesh whose ranks differ: {unlike}"
    return all_of(verdict(right and unlike == ["outside", "refused", "refused"], said), _driven(seen))


@judging(mesh_and_world)
def the_mesh_is_alike(seen: Seen) -> Result:
    """The ranks inside compile the same operations and call as many collectives of the mesh; the one outside none."""
    values = seen["served"].get("values", [])
    found = [([op for graph in v["graphs"] for op in graph], v["calls"]) for v in values]
    right = len(found) == 3 and found[1] == found[2] != found[0] and found[1][1] > 0 == found[0][1]
    said = ", ".join(f"{len(operations)} and {calls}" for operations, calls in found)
    said = f"compiled operations, and collectives of the mesh, by rank: {said}"
    return verdict(right, said if values else seen["served"]["how"])


@judging(mesh_and_world, word=ENFORCED)
def who_is_outside_is_refused(seen: Seen) -> Result:
    """A rank outside that enters the mesh's code, or its exchange, is refused before it can wait for anybody."""
    row = seen["refused"]
    zero, *others = row.get("values") or [row["how"]]
    right = zero.count("rank 0 is outside of 'mesh'") == 2 and others == ["is in it; is in it"] * 2
    return verdict(right, zero)


@judging(mesh_and_world, word=ENFORCED)
def rank_zero_differs_and_stays_out(seen: Seen) -> Result:
    """A rank outside may compile other graphs than the mesh; where it enters the mesh's code it is refused."""
    return all_of(rank_zero_may_stay_outside(seen), who_is_outside_is_refused(seen))


@judging(mesh_and_world)
def a_stranger_deadlocks(seen: Seen) -> Result:
    """A rank that calls a collective of a group it is not in blocks, by at least one of five ways to call it."""
    words = {"finished": "without effect", "failed": "an error at once", "hung": "a hang"}
    ends = {name: words[row["how"]] for name, row in seen["stranger"].items()}
    said = ", ".join(f"{name} {end}" for name, end in ends.items())
    return verdict("a hang" in ends.values(), f"from a rank outside: {said}")


def _only_by_mistake(seen: Seen, name: str, mistake: str) -> Result:
    """Whether a mistake hangs, and the same program without it is right."""
    how, right = seen[name]["how"], seen["right_members"].get("values") == [2, 2, 2]
    said = verdict(right, f"in the mesh's own group: {'right' if right else 'not right'}")
    return all_of(verdict(how == "hung", f"{mistake}: {how}"), said)


@judging(mesh_and_world)
def the_wrong_group_deadlocks(seen: Seen) -> Result:
    """A collective of the world inside the mesh's part blocks; one of the mesh does not."""
    return _only_by_mistake(seen, "world_inside", "in the world's group")


@judging(mesh_and_world)
def a_wrong_member_deadlocks(seen: Seen) -> Result:
    """A group that counts a rank in by mistake blocks at its first collective; the right one does not."""
    return _only_by_mistake(
        seen, "member_by_mistake", "first collective of a group that has rank 0 in it by mistake"
    )

"""What lesson 08 does not show: the list of calls on three ranks, DETAIL's gathers, names that ranks lack, ends."""

from __future__ import annotations

import lesson_cells
import pytest
import torch
import torch.distributed as dist
from oddrank.live.failure import Outcome
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import labkit
from course.shared.outcomes import judge
from labkit.ranks import RankError
from labkit.torch_compat import funcol

LESSON = "08_rank_symmetry"


def _lists(collectives, programs):
    """On a rank that sends nothing: what is listed of each program. It gets two groups; the first has a role."""
    group, other = dist.new_group([0, 1]), dist.new_group([0, dist.get_world_size() - 1])
    roles = {group.group_name: "tp"}
    return {name: collectives(lambda run=run: run(group, other), roles) for name, run in programs.items()}


def _eager(group, root=0, peer=1):
    x = torch.ones(4)
    dist.all_reduce(x, group=group)
    dist.broadcast(x, group_src=root, group=group)
    dist.isend(x, peer).wait()
    return funcol.all_reduce(x, "sum", group) + 1


def _compiled(group):
    return torch.compile(_reduced_twice, backend="aot_eager", fullgraph=True)(group, torch.ones(4))


def _reduced_twice(group, x):
    y = funcol.all_reduce(x, "sum", group)
    dist.all_reduce(y, group=group)
    return y


def _sharded(mesh_of, group):
    """A step of two layers under FSDP2, over the ranks of a group."""
    layers = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    for layer in (*layers, layers):
        model = fully_shard(layer, mesh=mesh_of(group, "cpu"))
    model(torch.ones(2, 6)).sum().backward()


@pytest.mark.slow
def test_the_list_shows_another_group_root_and_peer_and_each_call_once():
    """Lesson 08, section 3, for calls of `dist`, functional and compiled ones, and what FSDP2 calls."""
    programs = {
        "right": lambda group, other: _eager(group),
        "group": lambda group, other: _eager(other),
        "root": lambda group, other: _eager(group, root=1),
        "peer": lambda group, other: _eager(group, peer=2),
        "compiled": lambda group, other: _compiled(group),
        "compiled, group": lambda group, other: _compiled(other),
        "fsdp": lambda group, other: _sharded(DeviceMesh.from_group, group),
        "fsdp, group": lambda group, other: _sharded(DeviceMesh.from_group, other),
    }
    collectives = lesson_cells.copied(LESSON)["collectives"]
    with labkit.Ranks(3, device="cpu", backend="fake", quiet=True) as fake:
        found = fake.run(_lists, collectives, programs, ranks=0)[0]
    assert found["right"] == [
        "allreduce [4] float32 tp",
        "broadcast [4] float32 root_rank=0 tp",
        "send [4] float32 dst=1 [0, 1, 2]",
        "all_reduce [4] float32 sum tp",
    ]
    assert found["group"] == [call.replace("tp", "[0, 2]") for call in found["right"]]
    assert found["root"][1] == "broadcast [4] float32 root_rank=1 tp"
    assert "dst=2 " in found["peer"][2]
    assert found["compiled"] == ["all_reduce [4] float32 sum tp"] * 2
    assert found["compiled, group"] == ["all_reduce [4] float32 sum [0, 2]"] * 2
    names = [call.split()[0] for call in found["fsdp"]]
    assert names == ["_allgather_base"] * 4 + ["_reduce_scatter_base"] * 2
    assert all(call.endswith(" tp") for call in found["fsdp"])
    assert [call.split()[0] for call in found["fsdp, group"]] == names
    assert all(call.endswith(" [0, 2]") for call in found["fsdp, group"])


def _other_dtype(form):
    """On a rank: a collective in DETAIL's group, with another dtype on rank 1; what the wrapper says of it."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    dist.set_debug_level(dist.DebugLevel.OFF)
    x = torch.ones(4, dtype=(torch.float32, torch.int32)[dist.get_rank()])
    try:
        if form == "functional gather":
            funcol.all_gather_tensor(x, 0, group).tolist()
        elif form == "functional scatter":
            funcol.reduce_scatter_tensor(x, "sum", 0, group).tolist()
        elif form == "gather":
            dist.all_gather_into_tensor(x.new_empty(8), x, group=group)
        else:
            dist.reduce_scatter_tensor(x.new_empty(2), x, group=group)
    except RuntimeError as error:
        return str(error)
    return "nothing"


@pytest.mark.slow
def test_detail_compares_gathers_and_scatters_in_place_and_not_their_functional_forms():
    """Lesson 08, section 6. On a group whose wrapper compares nothing, the other dtype ends without an error."""
    with labkit.Ranks(2, device="cpu", backend="gloo", stall=10, timeout=60, quiet=True) as two:
        said = {form: set(two.run(_other_dtype, form).values())
                for form in ("gather", "scatter", "functional gather", "functional scatter")}  # fmt: skip
    for form in ("gather", "scatter"):
        assert all("differ in the following aspects" in one and "dtypes" in one for one in said[form]), form
    assert said["functional gather"] == said["functional scatter"] == {"nothing"}


def test_how_an_end_is_judged():
    late = "Timed out\nmore"
    for outcome, ended, judged in (
        (Outcome(0, "error", "ContractError", "two"), "raised", ("caught", "ContractError: two")),
        (Outcome(0, "error", "Diverged", "other"), "raised", ("caught", "Diverged: other")),
        (Outcome(0, "error", "RuntimeError", late), "raised", ("error", "RuntimeError: Timed out")),
        (Outcome(0, "unfinished", waits="all_reduce"), "stalled", ("hung", "rank 0 in all_reduce")),
        (Outcome(0, "dead", code=-6), "died", ("crash", "rank 0 died: killed by SIGABRT.")),
        (Outcome(0, "unfinished"), "timed out", ("hung", "the call failed")),
    ):
        assert judge(RankError("the call failed", [outcome, Outcome(1, "ok")], ended=ended)) == judged


def _names(same_on, which):
    """On a rank: compare dicts of which each rank may have names of its own."""
    try:
        same_on(dist.group.WORLD, which[dist.get_rank()])
    except RuntimeError as error:
        return str(error)


@pytest.mark.slow
def test_the_rule_finds_a_name_that_one_rank_lacks_whichever_rank_it_is(ranks):
    """A value of None counts as a value: a rank that lacks the name differs from it."""
    same_on = lesson_cells.copied(LESSON)["same_on"]
    for which in ({"cse": None, "x": 1}, {"x": 1}), ({"x": 1}, {"cse": None, "x": 1}):
        (said,) = set(ranks.run(_names, same_on, which).values())
        assert "'cse'" in said and "'missing'" in said and "'x'" not in said
    assert set(ranks.run(_names, same_on, ({"cse": None}, {"cse": None})).values()) == {None}

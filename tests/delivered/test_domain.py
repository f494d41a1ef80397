"""Domains: who is in, who is not, what is refused at the border, and that nobody waits there for anybody."""

from __future__ import annotations

import functools
import linecache
import re

import pytest
import torch
import wrong_group_programs
from rehearsal import raised, rehearse
from wrong_group_programs import PROGRAMS

import labkit
from course.shared.contract import Absent, ContractError, Domain, WrongGroup, alike, collectives
from labkit.ranks import RankError


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", timeout=120, stall=20, quiet=True) as ranks:
        yield ranks


# --- on threads, without a process group ---


def test_what_is_compared_in_a_domain_does_not_ask_who_is_outside():
    def body(world):
        mesh = Domain.define(world, "mesh", [1, 2])
        if mesh.member:
            alike(mesh.exchange, "graphs", {"graphs": 1})
        alike(world, "graphs", {"graphs": int(mesh.member)})

    assert "graphs: rank 0 0, rank 1 1, rank 2 1" in raised(rehearse(3, body)), "in the world they differ"


def test_a_rank_outside_is_refused_at_once():
    def body(world):
        mesh = Domain.define(world, "mesh", [1, 2])
        with pytest.raises(WrongGroup, match=r"rank 0 is outside of 'mesh' \(ranks 1 and 2\)"), mesh.inside():
            raise AssertionError("it was let in")
        with pytest.raises(WrongGroup, match="has no part in its exchanges"):
            mesh.exchange.gather("settings", 1)
        with pytest.raises(WrongGroup, match="must not compile its graphs"):
            mesh.backend("eager")(None, [])
        return "refused"

    assert (
        rehearse(3, lambda world: body(world) if world.rank == 0 else Domain.define(world, "mesh", [1, 2]))[0]
        == "refused"
    )


@pytest.mark.parametrize(
    ("mine", "kind", "said"),
    [
        (lambda world: Domain.define(world, "mesh", [0, 1, 2] if world.rank == 0 else [1, 2]), WrongGroup,
         "disagree on who is in 'mesh': rank 0 (0, 1, 2), rank 1 (1, 2)"),
        (lambda world: Domain.define(world, "mesh" if world.rank else "all", [1, 2]), ContractError,
         "rank 0 at 'domain all', rank 1 at 'domain mesh'"),
        (lambda world: Domain.define(world, "mesh", [1, 2]) if world.rank else "elsewhere", Absent,
         "rank 0 did not come to 'domain mesh'"),
    ],
)  # fmt: skip
def test_ranks_that_mean_other_groups_hear_of_it(mine, kind, said):
    for error in rehearse(3, mine, timeout=1.0)[1:]:
        assert type(error) is kind and said in str(error)


@pytest.mark.parametrize("ranks", [[], [1, 1], [1, 3]])
def test_a_domain_that_cannot_be(ranks):
    said = raised(rehearse(2, lambda world: Domain.define(world, "mesh", ranks)), ValueError)
    assert said == f"domain 'mesh' needs ranks of the world, each once; got {ranks}"


# --- on ranks ---


@pytest.mark.slow
def test_right_programs_are_let_through(three):
    assert list(three.run(PROGRAMS["right"]).values()) == ["outside", [6.0, 6.0, 2], [6.0, 6.0, 2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("compiled", r"all_reduce at wrong_group_programs.py:\d+ is compiled for the world"),
        ("compiled_in_place", r"all_reduce at wrong_group_programs.py:\d+ is compiled for the world"),
        ("another_group", "is compiled for group"),
        ("barrier", "barrier is asked of the world"),
        ("at_a_break", "broadcast is asked of the world"),
        ("objects", "all_gather_object is asked of the world"),
        ("world_size", "get_world_size is asked of the world"),
        ("not_in_it", "all_reduce is asked of a group that rank 2 is not in"),
    ],
)
def test_a_collective_of_another_group_raises_on_the_members_before_it_starts(three, name, said):
    with pytest.raises(RankError) as caught:
        three.run(PROGRAMS[name])
    raised = [o for o in caught.value.outcomes if o.kind == "error"]
    assert raised and {o.type for o in raised} == {"WrongGroup"} and {o.rank for o in raised} <= {1, 2}
    assert re.match(r"in the code of 'mesh' \(ranks 1 and 2\): .*" + said, raised[0].message)
    if place := re.search(r"programs.py:(\d+)", raised[0].message):
        assert "all_reduce(x" in linecache.getline(wrong_group_programs.__file__, int(place[1]))


@pytest.mark.slow
def test_the_fence_is_gone_after_its_block_and_after_an_error(three):
    assert list(three.run(PROGRAMS["fence_is_gone"]).values()) == ["outside", 3.0, 3.0]


def test_other_errors_pass_through():
    class Boom(Exception):
        inner_exception = ValueError("theirs")

    alone = functools.partial(Domain, "mesh", (0,), 0)
    with pytest.raises(Boom), alone().inside():
        raise Boom
    with pytest.raises(ZeroDivisionError), alone().inside():
        1 / 0  # noqa: B018


def test_a_collective_inside_a_nested_graph_is_found():
    inner = torch.fx.symbolic_trace(lambda x: torch.ops._c10d_functional.all_reduce(x, "sum", "7"))
    graph = torch.fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    found = list(collectives(torch.fx.GraphModule({"inner": inner}, graph)))
    assert [(op, group) for op, group, _ in found] == [("all_reduce", "7")]

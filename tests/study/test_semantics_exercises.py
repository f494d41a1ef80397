"""The exercises of lesson 02: what passes, and for each plausible mistake the hint for that mistake."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from labkit import check


def gate(x):
    if torch.compiler.is_compiling():
        return funcol.broadcast(x, 0, dist.group.WORLD)
    dist.broadcast(x, 0)
    return x


def in_place(x):
    dist.broadcast(x, 0)
    return x


def functional(x):
    return funcol.broadcast(x, 0, dist.group.WORLD)


def returns_nothing(x):
    dist.broadcast(x, 0)


def drops_the_value(x):
    if torch.compiler.is_compiling():
        funcol.broadcast(x, 0, dist.group.WORLD)
        return x
    return in_place(x)


def of_a_copy(x):
    return gate(x) if torch.compiler.is_compiling() else in_place(x.clone())


def from_rank_1(x):
    dist.broadcast(x, 1)
    return x


def gathers_all(x):
    if torch.compiler.is_compiling():
        return funcol.all_gather_tensor(x, 0, dist.group.WORLD)[: len(x)]
    return in_place(x)


def unwritten(x):
    raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (in_place, "dist.broadcast breaks the graph"),
        (functional, "eager pays for a new tensor"),
        (of_a_copy, "eager pays for a new tensor"),
        (returns_nothing, "return the tensor"),
        (drops_the_value, "return what they return"),
        (from_rank_1, "which is what rank 0 has"),
        (gathers_all, "the graph makes a tensor that nobody needs"),
        (unwritten, "write the body of the function first"),
    ],
)
def test_each_wrong_gate_gets_its_own_hint(attempt, says, ranks):
    answer = check("semantics.gate", attempt, ranks)
    assert not answer
    assert says in str(answer)


@pytest.mark.slow
def test_the_gate_passes(ranks):
    answer = check("semantics.gate", gate, ranks)
    assert answer, answer
    assert "0 allocations" in answer.findings[0] and "1 graph, 0 breaks" in answer.findings[1]


def mean(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD) / dist.get_world_size()


def averaged(x):
    return funcol.all_reduce(x, "avg", dist.group.WORLD)


def mean_in_place(x):
    y = x / dist.get_world_size()
    dist.all_reduce(y)
    return y


def only_the_sum(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def changes_its_argument(x):
    dist.all_reduce(x)
    return x / dist.get_world_size()


def detached(x):
    return mean(x.detach()) + 0 * x


@torch.compiler.disable
def hidden(x):
    return mean(x)


def behind_a_break(x):
    return hidden(x * 1) * 1


def no_mean(x):
    mean(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (averaged, "gradients pass through a functional sum only"),
        (mean_in_place, "each rank has its own share alone"),
        (only_the_sum, "divided by how many there are"),
        (changes_its_argument, "belongs to the caller"),
        (detached, "stops the gradient or scales it"),
        (behind_a_break, "it should be one graph"),
        (no_mean, "return the mean"),
        (unwritten, "write the body of the function first"),
    ],
)
def test_each_wrong_mean_gets_its_own_hint(attempt, says, ranks):
    answer = check("semantics.mean", attempt, ranks)
    assert not answer
    assert says in str(answer)


@pytest.mark.slow
def test_the_mean_passes(ranks):
    answer = check("semantics.mean", mean, ranks)
    assert answer, answer
    assert len(answer.findings) == 2 and "compiled" in answer.findings[1]

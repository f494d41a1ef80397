"""The program of lesson 16: worlds that are not there, traced in one process, which is afterwards as it was."""

from __future__ import annotations

import pytest

import labkit
from labkit import lessons

SIZES = {"dim": 1024, "heads": 1024, "blocks": 1, "tokens": 32}


def traced(worlds: list[tuple[int, int]], **sizes: int) -> dict:
    """On a rank that runs alone: messages, flops, operations and memory, by world and rank."""
    import resource

    import torch.distributed as dist

    dist.destroy_process_group()
    scale = lessons.program("scale")
    found = {}
    for world, rank in worlds:
        graph = scale.trace(scale.cliff.Config(**sizes), world, rank)
        found[world, rank] = {
            "bytes": [x.numel() * x.element_size() for x in scale.messages(graph)],
            "flops": scale.flops(graph),
            "operations": [str(n.target) for n in graph.graph.nodes if n.op == "call_function"],
            "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    return found


@pytest.fixture(scope="module")
def alone():
    with labkit.Ranks(1, "cpu", "fake", quiet=True) as alone:
        yield alone


@pytest.fixture(scope="module")
def found(alone):
    alone.restart()
    return alone.run(traced, [(1, 0), (2, 0), (4, 0), (1024, 0), (1024, 1023)], **SIZES, timeout=120)[0]


@pytest.mark.slow
def test_four_messages_of_one_size_in_every_world(found):
    norm, whole = 32 * 4, 32 * 1024 * 4  # a float32 a token; tokens x features
    sizes = {key: one["bytes"] for key, one in found.items()}
    assert sizes.pop((1, 0)) == []
    assert all(one == [norm, norm, whole, whole] for one in sizes.values())


@pytest.mark.slow
def test_work_is_a_ranks_share(found):
    flops = {key: one["flops"] for key, one in found.items()}
    assert flops[2, 0] == 512 * flops[1024, 0] == flops[1, 0] / 2
    products = 2 * 32 * 12 * 1024**2 / 2  # the projections and the MLP, on one of two ranks
    assert products < flops[2, 0] < 1.05 * products  # and attention


@pytest.mark.slow
def test_all_worlds_and_the_first_and_the_last_rank_have_one_graph(found):
    graphs = [found[key]["operations"] for key in ((2, 0), (4, 0), (1024, 0), (1024, 1023))]
    assert all(one == graphs[0] for one in graphs) and graphs[0] != found[1, 0]["operations"]


@pytest.mark.slow
def test_twelve_gigabytes_of_weights_take_no_memory(alone):
    alone.restart()
    worlds = [(1024, 0), (1, 0)]
    large = alone.run(traced, worlds, dim=16384, heads=1024, blocks=1, tokens=16, timeout=120)[0]
    assert large[1, 0]["MiB"] - large[1024, 0]["MiB"] < 100


# --- a group that is there, and one that is not ---


def where_a_group_is() -> tuple[str, float]:
    import torch
    import torch.distributed as dist

    scale = lessons.program("scale")
    try:
        scale.trace(scale.cliff.Config(dim=64, heads=8, blocks=1), 4)
        said = "traced"
    except ValueError as error:
        said = str(error)
    x = torch.ones(())
    dist.all_reduce(x)
    return said, x.item()


def test_a_process_with_a_group_is_refused_and_keeps_it(ranks):
    for said, total in ranks.run(where_a_group_is).values():
        assert "twice" in said and total == 2


def left_behind(fails: bool) -> dict:
    """On a rank that runs alone: what a trace, or one that raises in its middle, leaves."""
    from unittest import mock

    import torch
    import torch.distributed as dist

    dist.destroy_process_group()
    scale = lessons.program("scale")
    config = scale.cliff.Config(dim=64, heads=8, blocks=1, tokens=4)
    broken = mock.patch.object(torch, "compile", side_effect=OSError("in the middle"))
    try:
        if fails:
            broken.start()
        said = f"{len(scale.messages(scale.trace(config, 8, 7)))} messages"
    except OSError as error:
        said = str(error)
    finally:
        mock.patch.stopall()
    left = dist.is_initialized()
    x = torch.ones(2) * 3  # a real tensor again: no fake mode is left on
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(x)
    return {"said": said, "left": left, "x": x.tolist()}


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "said"), [(False, "4 messages"), (True, "in the middle")])
def test_nothing_of_a_fake_group_is_left_behind(alone, fails, said):
    alone.restart()
    assert alone.run(left_behind, fails)[0] == {"said": said, "left": False, "x": [3.0, 3.0]}

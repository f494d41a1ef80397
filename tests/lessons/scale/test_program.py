"""Lesson 16: what its rules say, outside of the lesson's sizes, meshes and constants."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from lesson_cells import run

import labkit
from course.scale import figures
from course.scale.exercises import GRAPHS
from course.scale.exercises.places import MESH, SIZES, WRITERS, shard
from labkit import lessons
from labkit.lessons.standalone import script

LESSON = "16_beyond_this_machine"
GROUP = re.compile(r", '(\d+)'\)")
PADS = re.compile(r"constant_pad_nd(?:\.default)?\(\w+, \[[0, ]*[1-9]")


def without_group(function, *arguments):
    import torch.distributed as dist

    me = dist.get_rank()
    dist.destroy_process_group()
    return function(lessons.program("scale"), me, *arguments)


def alone(function, *arguments, world_size=1):
    with labkit.Ranks(world_size, "cpu", "fake", quiet=True, timeout=300) as new:
        return new.run(without_group, function, *arguments)


# --- traces ---


def shapes(scale, me, mesh, ranks, *sizes):
    graphs = scale.trace(mesh, ranks[me], *sizes)
    weight = next(iter(graphs[0].graph.nodes)).meta["val"]
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    # torch 2.15 pads every rank, by 0 rows where none is missing
    pads = sum("constant_pad_nd" in str(node.target) and any(node.args[1]) for node in nodes)
    return tuple(weight.shape), pads, [scale.text_of(graph) for graph in graphs]


@pytest.mark.slow
def test_a_corner_an_edge_and_the_middle_of_another_mesh_differ_as_the_lesson_says():
    ranks = [0, 2, 9, 11]  # of 4 x 3: a middle, the last column, the last row, the last corner
    found = alone(shapes, (4, 3), ranks, 10, 8, 5, world_size=4)
    assert [one[0] for one in found.values()] == [(3, 3), (3, 2), (1, 3), (1, 2)]
    # backward pads the last row's piece on every rank
    assert [one[1] for one in found.values()] == [1, 1, 2, 2]
    assert len({one[2][0] for one in found.values()}) == 4


def real(mesh, *sizes):
    from torch.distributed.device_mesh import init_device_mesh

    scale = lessons.program("scale")
    graphs = scale.graphs_on(init_device_mesh("cpu", mesh, mesh_dim_names=("dp", "tp")), *sizes)
    return scale.bare(map(scale.text_of, graphs))


@pytest.mark.slow
def test_a_trace_is_what_a_real_rank_compiles():
    mesh, sizes, every = (2, 3), (9, 13, 3), range(6)  # they do not divide
    with labkit.Ranks(len(every), "cpu", "gloo", quiet=True, timeout=300) as ranks:
        compiled = ranks.run(real, mesh, *sizes)
    traced = alone(shapes, mesh, list(every), *sizes, world_size=len(every))
    for rank in every:
        assert compiled[rank] == lessons.program("scale").bare(traced[rank][2])
    assert compiled[0] != compiled[every[-1]], "the shards differ"


def test_groups_are_numbered_by_first_use_and_nothing_else_is_renamed():
    bare = lessons.program("scale").bare
    one, other = (
        f"a = f(x, 2, '{a}')\nb = g(a, 'sum', '{b}')\nc = f(b, 2, '{a}')"
        for a, b in (("1", "33"), ("17", "4"))
    )
    assert bare([one]) == bare([other])
    assert bare(["g(a, 'sum', '1')"]) != bare(["g(a, 'avg', '1')"])
    assert bare(["f(x, '1') f(y, '2')"]) != bare(["f(x, '1') f(y, '1')"])


@pytest.mark.slow
def test_the_graphs_of_the_exercise_are_those_of_their_ranks():
    found = alone(shapes, MESH, list(WRITERS.values()), *SIZES, world_size=len(WRITERS))
    for (name, rank), (size, _, texts) in zip(WRITERS.items(), found.values(), strict=True):
        row, column = divmod(rank, MESH[1])
        assert GROUP.findall(GRAPHS[name]) == [str(1 + column), str(1 + MESH[1] + row)]
        assert size == shard(rank)
        assert f'"f32[{size[0]}, {size[1]}]"' in GRAPHS[name].splitlines()[1]
        for graph in (texts[0], GRAPHS[name]):
            assert bool(PADS.search(graph)) == (rank >= MESH[1] * (MESH[0] - 1))


def left_behind(scale, me):
    import torch
    import torch.distributed as dist

    said = ""
    try:
        scale.trace((2, 2), 3, 0, -4)
    except Exception as error:
        said = type(error).__name__
    left = dist.is_initialized()
    x = torch.ones(2) * 3  # a real tensor again
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(x)
    return said != "", left, x.tolist()


@pytest.mark.slow
def test_a_trace_that_fails_leaves_nothing_behind():
    assert alone(left_behind)[0] == (True, False, [3.0, 3.0])


# --- the model ---


def test_p_star_is_the_shortest_step_for_any_constants():
    scale = lessons.program("scale")
    for flops, m, n, alpha, beta, rate in itertools.product(
        (1e8, 1e12), (1, 6), (1e3, 1e7), (1e-6, 2e-4), (1e-11, 1e-8), (1e10, 1e14)
    ):
        messages = [n * (i + 1) for i in range(m)]
        costs = (flops, messages, alpha, beta, rate)
        steps = [sum(scale.step_time(p, *costs, overhead=1e-4)) for p in range(1, 5001)]
        best, found = int(np.argmin(steps)) + 1, scale.p_star(*costs)
        if best < 5000:
            assert abs(found - best) <= 1, costs
        else:
            assert found > 4990


def test_a_model_is_judged_only_where_the_spread_is_narrower_than_its_effect():
    verdict = lessons.program("scale").verdict
    models = 1.0, 0.4, 6.0  # with communication, without it, with ten times as much
    assert verdict(0.9, 1.2, *models) == "holds"
    assert verdict(1.4, 2.0, *models) == "fails"
    assert verdict(0.9, 1.6, *models) == "cannot tell", "the interval is wider than the tolerance"
    assert verdict(0.9, 1.2, 1.0, 0.95, 6.0) == "cannot tell", "a wrong model fits as well"
    assert verdict(-np.inf, np.inf, *models) == "cannot tell", "too few rounds"


NCCL_ALGORITHMS, NCCL_PROTOCOLS = ("tree", "ring"), ("LL", "LL128", "Simple")
BASE = [[6.8, 14.0, 8.4], [6.6, 14.0, 8.4]]  # as in src/graph/tuning.cc of NCCL 2.30
NVLINK_US, NET_US = [[0.6, 1.25, 4.0], [0.6, 1.9, 3.4]], [[5.0, 8.5, 14], [2.7, 4.0, 14.0]]


def tuning(algorithm, protocol, ranks, nbytes):
    """The lines of ncclTopoTuneModel for an all-reduce on Hopper and Intel, without limits by channel; us."""
    a, p = NCCL_ALGORITHMS.index(algorithm), NCCL_PROTOCOLS.index(protocol)
    nodes, steps = max(1, ranks // 8), 2 * (ranks - 1)
    bus = 450e3 if nodes == 1 else 400e3  # bytes a us
    most = [141e3, 39e3, 20.4e3][min(nodes, 3) - 1]
    intra, inter = NVLINK_US[a][p], NET_US[a][p]
    if algorithm == "ring":
        bus = [min(most, bus * 0.5), bus * 0.92, bus][p] * ranks / steps
        overhead = 0.0 if nodes == 1 else 3.0 if protocol == "Simple" else 1.0
        across = 2 * (nodes - 1)
        latency = (steps - across) * max(intra, overhead) + across * inter
    else:
        bus *= 0.92
        bus = [min(bus / 3.8, most), bus * 120 / 128, bus][p] * 0.5
        latency = 2 * ((ranks // nodes - 1) * intra + int(np.log2(nodes)) * inter)
    return BASE[a][p] + latency + nbytes / bus


def test_the_model_of_a_machine_with_nodes_is_that_of_nccl():
    lesson = run(LESSON, "scale-28", np=np, pd=pd)
    for ranks, nbytes in itertools.product((2, 8, 16, 24, 64, 1024), (8, 10**6, 10**9)):
        found = lesson["ways"](ranks, nbytes)
        assert len(found) == (3 if ranks <= 8 else 6)
        for way, seconds in found.items():
            assert 1e6 * seconds == pytest.approx(tuning(*way, ranks, nbytes)), (way, ranks, nbytes)
    least = [min(lesson["ways"](512, n).items(), key=lambda one: one[1])[0] for n in (2**10, 2**26, 2**32)]
    assert least == [("tree", "LL"), ("tree", "LL128"), ("tree", "Simple")]


# --- the start ---


def test_the_largest_of_many_draws_grows_and_never_exceeds_what_is_resampled():
    compiles, hits = np.array([8.0, 10.0, 12.0]), np.array([1.0, 1.5])
    rows = [("empty folder", s) for s in compiles] + [("restart", s) for s in hits]
    starts = pd.DataFrame(rows, columns=["kind", "seconds"])
    names = {"starts": starts, "ranks": SimpleNamespace(label="made up"), "figures": figures}
    simulate = run(LESSON, "scale-35", np=np, pd=pd, **names)["simulate"]
    ready = [np.median(simulate(compiles, hits, p)["everyone compiles"][0]) for p in (2, 64, 1024)]
    assert ready == sorted(ready) and ready[-1] <= 12
    few = simulate(compiles, hits, 64)
    assert few["one compiles"][2].mean() < few["everyone compiles"][2].mean()
    # the others wait for the whole compile, not only for a difference of two
    assert few["one compiles"][1].min() > 0.5 * compiles.min()


# --- without labkit ---


@pytest.mark.slow
def test_the_script_prints_the_graph_of_a_rank_that_is_not_there(tmp_path):
    (tmp_path / "scale.py").write_text(script(LESSON), encoding="utf-8")
    printed = []
    for rank in (33, 1023):
        done = subprocess.run(
            [sys.executable, "scale.py", str(rank)], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0].count("def forward") == 2 and "'group 1')" in printed[0]
    assert "constant_pad_nd" in printed[1] and '"f32[8, 8]"' in printed[1]

"""Lesson 12 outside its example: other graphs and three ranks in fresh processes, its script, the exercise's jobs."""

from __future__ import annotations

import functools
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import warnings

import lesson_cells
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.torch_version import TorchVersion

from course.cold import exercises, starts
from course.cold import figures as drawn
from course.cold.phases import CHECK, CPP, DYNAMO, LOAD, RUN, phases, segments
from labkit import Ranks, files, lessons
from labkit.lessons import standalone
from labkit.torch_compat import funcol

LESSON = "12_cold_and_warm"
NAMES = dict(functools=functools, os=os, re=re, shutil=shutil, statistics=statistics, sys=sys, time=time)
NAMES |= dict(warnings=warnings, torch=torch, dist=dist, nn=nn, TorchVersion=TorchVersion, funcol=funcol)
NAMES |= dict(phases=phases, RUN=RUN, WIDTH=starts.WIDTH, batch=starts.batch, made=starts.made)
NAMES |= dict(outcome=starts.outcome, own_caches=starts.own_caches)


@pytest.fixture(scope="module")
def space():
    """What the lesson's cells define."""
    names = NAMES | {"cache_counts": lessons.program("cold").cache_counts}
    return lesson_cells.run(LESSON, "products", "kinds", "changes", "serve", **names)


def fresh(function, *arguments, world_size=2):
    trusting = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
    with Ranks(world_size, device="cpu", backend="shm", quiet=True, timeout=300, env=trusting) as new:
        return new.run(function, *arguments)


def test_nested_phases_are_cut_without_a_gap_and_other_threads_left_out():
    events = [
        (1.0, "B", "dynamo", 1), (2.0, "B", "async_compile.wait", 1), (2.1, "B", "compile_file", 2),
        (3.0, "E", "compile_file", 2), (4.0, "E", "async_compile.wait", 1), (4.5, "B", "gc", 1),
        (5.0, "E", "dynamo", 1),
    ]  # fmt: skip
    found = segments(events, [(0.0, LOAD), (0.5, RUN)], 6.0, thread=1)
    assert found == [
        (LOAD, 0.0, 0.5), (RUN, 0.5, 1.0), (DYNAMO, 1.0, 2.0), (CPP, 2.0, 4.0), (DYNAMO, 4.0, 5.0), (RUN, 5.0, 6.0),
    ]  # fmt: skip


def test_a_waterfall_names_who_waits_or_who_takes_longest():
    lanes = {"rank 0": [(DYNAMO, 0.0, 1.0), (RUN, 1.0, 6.0)], "rank 1": [(DYNAMO, 0.0, 6.0)]}
    summary = drawn.waterfall(lanes, "shm · cpu").summary
    assert "rank 0 takes 6.0 s, 83% of it “run, or wait for a peer”" in summary
    lanes = {
        "rank 0": [(DYNAMO, 0.0, 1.0), (RUN, 1.0, 6.0)],
        "rank 1": [(DYNAMO, 0.0, 4.0), (CHECK, 4.0, 6.1)],
    }
    assert "rank 0 takes 6.0 s, 83% of it “run, or wait for a peer”" in drawn.waterfall(lanes, "x").summary
    lanes = {"whole": [(DYNAMO, 0.0, 6.0)], "block by block": [(DYNAMO, 0.0, 2.5)]}
    assert drawn.waterfall(lanes, "host only").summary.startswith("whole takes 6.0 s, block by block 2.5 s.")


def columns_times_three(x):
    """Not the lesson's program: another axis, another operation."""
    mine = x.redistribute(placements=[Shard(1)])
    return (mine * 3 + 1).redistribute(placements=[Replicate()])


def first_of(place, remedy):
    """On a rank of three: the first compiled call of a new process; whether it is right, and the cache counts."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place / f"shared-{remedy}")
    if remedy == "tag":
        torch.compiler.config.cache_key_tag = f"rank{dist.get_rank()}"
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.arange(12.0).reshape(2, 6)
    y = torch.compile(columns_times_three)(DTensor.from_local(x, mesh, [Replicate()], run_check=False))
    return torch.equal(y.to_local() + 0, x * 3 + 1), lessons.program("cold").cache_counts()


@pytest.mark.slow
def test_a_folder_that_ranks_share_is_wrong_at_the_second_start_but_with_the_rank_in_the_key(tmp_path):
    for remedy in ("", "tag"):
        for second in (False, True):
            found = fresh(first_of, tmp_path, remedy, world_size=3)
            rights = [right for right, _ in found.values()]
            assert all(rights) or (not remedy and second), (remedy, second, rights)
            assert all(bool(counts["hit"]) == second for _, counts in found.values())
            assert remedy or not (second and all(rights)), (
                "the cache knows the rank: the lesson is out of date"
            )


STEP = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
mesh, rows = init_device_mesh("cpu", (dist.get_world_size(),)), 2 * dist.get_world_size()
ids, table = torch.arange(rows), torch.arange(float(rows * 2)).reshape(rows, 2)
dist.barrier()  # no rank looks when another one has stored
if sys.argv[1] == "a mesh in the graph":
    run = torch.nn.Embedding.from_pretrained(table.clone(), freeze=False)
    plan = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    weight = parallelize_module(run, mesh, plan).weight
    y = torch.compile(run)(ids)
else:
    weight = distribute_tensor(table, mesh, [Shard(0)]).requires_grad_()
    ids = DTensor.from_local(ids, mesh, [Replicate()], run_check=False)
    found = lambda ids, weight: torch.nn.functional.embedding(ids, weight).redistribute(placements=[Replicate()])
    y = torch.compile(found)(ids, weight).to_local()
y.square().sum().backward()
mine, every = (torch.equal(y, table), torch.equal(weight.grad.full_tensor(), 2 * table)), [None] * mesh.size()
dist.all_gather_object(every, mine)
if dist.get_rank() == 0:
    print(all(result for result, _ in every), all(gradient for _, gradient in every))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["DTensors as inputs", "a mesh in the graph"])
def test_only_a_graph_without_its_mesh_shares_a_key_and_a_mesh_has_a_new_key_in_each_start(tmp_path, form):
    """Three ranks in processes of their own, with gradients: a row-sharded embedding."""
    (tmp_path / "step.py").write_text(STEP)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "shared"), "TORCH_LOGS": "aot"}
    env |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    env.pop("PYTHONHASHSEED", None)
    right, keys = [], []
    for _ in range(2):
        command = [*run, "step.py", form]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]  # wrong without an error, where it is wrong
        right.append(done.stdout.split())
        lines = exercises.cache_lines(done.stderr)
        keys.append([line.partition("AOTAutograd cache ")[2] for line in lines if "AOTAutograd" in line])
    first, second = ({line.split()[-1] for line in lines} for lines in keys)
    assert right[0] == ["True", "True"] and [len(lines) for lines in keys] == [3, 3], keys
    if form == "DTensors as inputs":
        assert first == second and len(first) == 1
        assert all(line.startswith("hit") for line in keys[1]), keys
        assert right[1] == ["False", "False"], "the cache knows the rank: the lesson is out of date"
    else:
        assert len(first | second) == 6 and all(line.startswith("miss") for line in keys[1]), keys
        assert right[1] == ["True", "True"]


def past_a_cache(use, place):
    """On a rank: the same start twice, of a model with a function that AOTAutograd's cache refuses."""

    @torch._dynamo.allow_in_graph
    def clipped(x):
        return torch.clamp(x, max=1.0)

    use.__globals__["Products"].forward = lambda self, x: clipped(x @ self.weights[0])
    place = place / str(dist.get_rank())
    (place / "caches").mkdir(parents=True)
    first = use("second process", "nothing", place)[0]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    shutil.copytree(place / f"rank-{dist.get_rank()}", place / "caches", dirs_exist_ok=True)
    return first, use("second process", "nothing", place)[0], lessons.program("cold").cache_counts()


@pytest.mark.slow
def test_a_cache_that_is_bypassed_is_no_hit_though_another_one_hits(space, tmp_path):
    for first, second, counts in fresh(past_a_cache, space["use"], tmp_path).values():
        assert first == second == "bypass" and counts["hit"] == 1


VERDICTS = {  # a start's settings, beside what the lesson shows: the exit status, and the verdict
    "no note": ({}, 0, "start twice with TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"),
    "no caches": ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, 0, "kept; start once more for the noise"),
    "second": ({}, 1, "SUSPECT CACHE"),
    "own, empty": ({"CACHES": "own-{rank}"}, 0, "no hit: nothing was tested"),
    "own": ({"CACHES": "own-{rank}"}, 0, "no difference"),
}


@pytest.mark.slow
def test_the_script_suspects_a_cache_for_a_difference_with_a_hit_and_for_nothing_else(tmp_path):
    """Another program than the lesson's, whose result has negative numbers and two dimensions."""
    text = standalone.script(LESSON).replace("torch.arange(4.0)", "3 - torch.arange(12.0).reshape(4, 3)")
    (tmp_path / "starts.py").write_text(text)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, (settings, status, verdict) in VERDICTS.items():
        env = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"} | settings
        done = subprocess.run([*run, "starts.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout.splitlines()[-1].endswith(verdict)) == (status, True), (
            name, done.stdout, done.stderr[-2000:],
        )  # fmt: skip


JOBS = files.ours("data/captured/cache_jobs.py.txt")


def started(job, place):
    """Start a job of the exercise once; the sum of each rank, and the lines about caches."""
    (place / "cache_jobs.py").write_text(JOBS.read_text())
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(place / "cache"), "OMP_NUM_THREADS": "1", "SUMS": "1"}
    env |= {"TORCH_LOGS": "aot,inductor,output_code", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*run, "cache_jobs.py", job], cwd=place, env=env, capture_output=True, text=True, timeout=300
    )
    assert not done.returncode, done.stderr[-2000:]
    return dict(re.findall(r"rank (\d): sum (\d+\.\d{5})", done.stdout)), exercises.cache_lines(done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("job", "ACE")  # B shares a right graph, D's folder is gone
def test_the_log_of_the_exercise_is_what_its_program_does(job, tmp_path):
    before, _ = started(job, tmp_path)
    after, lines = started(job, tmp_path)
    assert (before == after) == (job != "A"), "only job A is wrong"
    assert any("Bypassing" in line for line in lines) == (job == "E")
    for rank in "01":
        assert any(line.startswith(f"[rank{rank}]") and " hit " in line for line in lines)

"""The runs of lesson 08's exercises: the jobs end as captured, and the answers are what their records say."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from lessons.symmetry.right import by_program, nodes_of_calls, output
from torch._inductor.compile_fx import compile_fx
from torch._inductor.utils import run_and_get_code

import labkit
from course.symmetry.exercises import JOB, WHERE


def batches(job, rank):
    """What the captured runs read: in `a` one batch of rank 2 is thirty times as large, in `b` rank 1 has nine."""
    torch.manual_seed(100 + rank)
    found = [torch.randn(8, 16) for _ in range(12)]
    if job == "a" and rank == 2:
        found[6] *= 30
    return found[:9] if job == "b" and rank == 1 else found


def calls(folder, rank):
    entries = pickle.loads((folder / f"trace_{rank}").read_bytes())["entries"]
    return [(e["collective_seq_id"], e["profiling_name"], e["input_sizes"]) for e in entries]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("job", ["a", "b"])
def test_the_job_hangs_as_in_the_captured_records(job, tmp_path):
    folder = tmp_path / job
    (folder / "batches").mkdir(parents=True)
    for rank in range(4):
        torch.save(batches(job, rank), folder / "batches" / f"{rank}.pt")
    shutil.copy(JOB, tmp_path / "train.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    env = os.environ | {"TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    subprocess.run([*launch, "train.py", job, "60"], cwd=tmp_path, env=env, capture_output=True, timeout=300)
    for rank in range(4):
        assert calls(folder, rank) == calls(JOB.parent / job, rank)


def test_the_answers_are_what_a_comparison_of_all_ranks_finds():
    found = by_program()
    assert {run: (one["rank"], one["collective"]) for run, one in found.items()} == WHERE


def compiled(job):
    """On a rank that sends nothing: the graph and the output code of a job's layer."""
    text, graphs = (JOB.parent / "layers.py.txt").read_text(), []
    names = {"__name__": "layers"}
    exec(compile(text, "layers.py", "exec"), names)

    def keep(graph, inputs):
        graphs.append(graph.code)
        return compile_fx(graph, inputs)

    torch.compiler.reset()
    names["differ"](job, torch.distributed.get_rank())
    inputs = torch.randn(4, 64), *(torch.randn(64, 64, requires_grad=True) for _ in range(2))
    _, codes = run_and_get_code(torch.compile(names["LAYERS"][job], backend=keep), *inputs)
    return graphs, codes


@pytest.mark.slow
def test_one_graph_becomes_the_two_programs_of_the_log():
    with labkit.Ranks(2, device="cpu", backend="fake", timeout=300, quiet=True) as fake:
        for job in "ABC":
            (graphs, (code,)), (same, (other,)) = fake.run(compiled, job).values()
            assert graphs == same and len(graphs) == 1, job
            assert nodes_of_calls(code) == nodes_of_calls(output(job, 0)), job
            assert nodes_of_calls(other) == nodes_of_calls(output(job, 1)), job

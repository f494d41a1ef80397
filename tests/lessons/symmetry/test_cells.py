"""Cells of lesson 08: what a break costs under a pass, which part notices which drill, and how an end is judged."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from datetime import timedelta

import lesson_cells
import nbformat
import pandas as pd
import pytest
import torch
import torch._inductor.config as inductor
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import labkit
from course.shared.outcomes import judge
from labkit import Report, contract, files
from labkit.ranks import RankError
from labkit.ranks.errors import Outcome
from labkit.torch_compat import funcol

LESSON = "08_rank_symmetry"
NAMES = dict(os=os, re=re, contextlib=contextlib, timedelta=timedelta, pd=pd, torch=torch, inductor=inductor)
NAMES |= dict(
    dist=dist,
    tempfile=tempfile,
    TorchDispatchMode=TorchDispatchMode,
    labkit=labkit,
    judge=judge,
    contract=contract,
)
NAMES |= dict(funcol=funcol, RankError=RankError, reveal=lambda *answer: "")


@pytest.mark.slow
def test_a_break_on_one_rank_ends_the_job_wherever_a_pass_changes_the_calls():
    """Lesson 08: harmless without the pass, right without the break, SIGABRT with both; so does a default pass."""
    with labkit.Ranks(2, device="cpu", backend="gloo", stall=1.5, quiet=True) as two:
        space = lesson_cells.run(
            LESSON, "gathers", "planned", "planned-run", "four", "passes", "passes-run", ranks=two, **NAMES
        )
    space["fake"].close()
    runs = space["runs"]
    assert list(runs["ended"]) == ["finished", "finished", "finished", "crash"]
    right, *other, said = runs["sums, or what was said"]
    assert other == [right, right] and "SIGABRT" in said
    for program, setting, gradients, calls_0, calls_1, ended in space["rows"]:
        same = calls_0 == calls_1
        assert (ended == "finished") == same, (program, setting, ended)
        assert same == ("bucket" not in setting and "dedup" not in setting and not gradients), program


def functions(*ids, **names):
    """The functions and classes of these cells, and nothing else that they do."""
    cells = nbformat.read(files.ours("notebooks") / f"{LESSON}.ipynb", as_version=4).cells
    space = {"__name__": "__main__", **NAMES, **names}
    for cell in cells:
        if cell.get("id") in ids:
            tree = ast.parse(cell.source)
            tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            exec(compile(tree, f"<{LESSON} {cell.id}>", "exec"), space)
    return space


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
    """A step of two layers under FSDP2, over the ranks of a group; with DDP, whose buckets a hook reduces."""
    layers = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    if mesh_of is None:
        model = torch.nn.parallel.DistributedDataParallel(layers, process_group=group)
        model.register_comm_hook(group, _reduced)
    else:
        for layer in (*layers, layers):
            model = fully_shard(layer, mesh=mesh_of(group, "cpu"))
    model(torch.ones(2, 6)).sum().backward()


def _reduced(group, bucket):
    dist.all_reduce(bucket.buffer(), group=group)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_the_list_shows_another_group_root_and_peer_and_each_call_once(size):
    """Lesson 08, section 1, for calls of `dist`, functional and compiled ones, and what FSDP2 and DDP call."""
    programs = {
        "right": lambda group, other: _eager(group),
        "group": lambda group, other: _eager(other),
        "root": lambda group, other: _eager(group, root=1),
        "peer": lambda group, other: _eager(group, peer=size - 1),
        "compiled": lambda group, other: _compiled(group),
        "compiled, group": lambda group, other: _compiled(other),
        "fsdp": lambda group, other: _sharded(DeviceMesh.from_group, group),
        "fsdp, group": lambda group, other: _sharded(DeviceMesh.from_group, other),
        "ddp": lambda group, other: _sharded(None, group),
    }
    collectives = functions("planned")["collectives"]
    with labkit.Ranks(size, device="cpu", backend="fake", quiet=True) as fake:
        found = fake.run(_lists, collectives, programs, ranks=0)[0]
    world, others = str(list(range(size))), str([0, size - 1])
    assert found["right"] == [
        "allreduce [4] float32 tp",
        "broadcast [4] float32 root_rank=0 tp",
        f"send [4] float32 dst=1 {world}",
        "all_reduce [4] float32 sum tp",
    ]
    assert found["group"] == [call.replace("tp", others) for call in found["right"]]
    assert found["root"][1] == "broadcast [4] float32 root_rank=1 tp"
    assert f"dst={size - 1} " in found["peer"][2]
    assert found["compiled"] == ["all_reduce [4] float32 sum tp"] * 2
    assert found["compiled, group"] == [f"all_reduce [4] float32 sum {others}"] * 2
    names = [call.split()[0] for call in found["fsdp"]]
    assert names == ["_allgather_base"] * 4 + ["_reduce_scatter_base"] * 2
    assert all(call.endswith(" tp") for call in found["fsdp"])
    assert [call.split()[0] for call in found["fsdp, group"]] == names
    assert all(call.endswith(others) for call in found["fsdp, group"])
    assert found["ddp"][-1] == "allreduce [84] float32 tp"


@pytest.fixture(scope="module")
def report() -> Report:
    made = []

    def keep(*arguments, **more):
        made.append(Report(*arguments, **more))

    drills = ["shape", "inputs", "order", "count", "op", "break", "merge", "grads"]
    with labkit.Ranks(2, device="cpu", backend="gloo", stall=1.5, quiet=True) as two:
        space = functions("planned", "four", "detail", "matrix-step", ranks=two, Report=keep, DRILLS=drills)
        lesson_cells.run(LESSON, "matrix", **space)
    return made[0]


@pytest.mark.slow
def test_each_part_notices_its_own_drills_and_lets_others_through(report):
    found = report.frame.set_index("drill")
    caught = {part: set(found.index[found[part] == "caught"]) for part in found.columns}
    assert caught == {
        "none": set(),
        "parity": {"op", "grads"},
        "plan": {"shape", "order", "count"},
        "traced": {"shape", "count", "merge"},
        "digests": {"shape", "inputs"},
        "health": {"break"},
        "DETAIL": {"shape"},
    }
    alone = found["none"].to_dict()
    assert alone.pop("count") == alone.pop("merge") == "hung" and alone.pop("break") == "right"
    assert found.loc["count", "DETAIL"] == found.loc["merge", "DETAIL"] == "timeout"
    assert set(alone.values()) == {"wrong"}
    assert found.loc["count", "parity"] == "hung", "a defence that does not fit changes nothing"


@pytest.mark.slow
def test_what_was_said_names_both_values_and_the_report_is_drawn_after_saving(report, tmp_path):
    loaded = Report.load(report.save(tmp_path))
    said = loaded.tables["outcomes"].set_index(["drill", "defence"])["said"]
    assert "rank 0 SUM, rank 1 MAX" in said["op", "parity"]
    assert "rank 0 2, rank 1 1" in said["count", "plan"] and "rank 0 in all_reduce" in said["count", "none"]
    assert "Ranks 1 failed to pass monitoredBarrier" in said["count", "DETAIL"]
    assert "first other break: rank 0 none, rank 1" in said["break", "health"]
    assert "order: none wrong, parity wrong, plan caught" in loaded.figure().summary


def _other_dtype(detailed, form):
    """On a rank: a collective in DETAIL's group, with another dtype on rank 1; what the wrapper says of it."""
    group, x = detailed(), torch.ones(4, dtype=(torch.float32, torch.int32)[dist.get_rank()])
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
    detailed = functions("detail")["detailed"]
    with labkit.Ranks(2, device="cpu", backend="gloo", stall=10, timeout=60, quiet=True) as two:
        said = {form: set(two.run(_other_dtype, detailed, form).values())
                for form in ("gather", "scatter", "functional gather", "functional scatter")}  # fmt: skip
    for form in ("gather", "scatter"):
        assert all("differ in the following aspects" in one and "dtypes" in one for one in said[form]), form
    assert said["functional gather"] == said["functional scatter"] == {"nothing"}


@pytest.mark.parametrize(
    ("outcome", "ended", "judged"),
    [
        (Outcome(0, "error", "PlanError", "two"), "raised", ("caught", "PlanError: two")),
        (Outcome(0, "error", "Diverged", "other"), "raised", ("caught", "Diverged: other")),
        (Outcome(0, "error", "RuntimeError", "Timed out\nmore"), "raised", ("error", "RuntimeError: Timed out")),
        (Outcome(0, "unfinished", waits="all_reduce"), "stalled", ("hung", "rank 0 in all_reduce")),
        (Outcome(0, "dead", code=-6), "died", ("crash", "rank 0 died: killed by SIGABRT.")),
        (Outcome(0, "unfinished"), "timed out", ("hung", "the call failed")),
    ],
)  # fmt: skip
def test_how_an_end_is_judged(outcome, ended, judged):
    assert judge(RankError("the call failed", [outcome, Outcome(1, "ok")], ended=ended)) == judged


def _checked(space, breaking_rank, settings):
    """On a rank: compare settings, warm up a model that breaks late on one rank, compare its counts."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    group = dist.new_group(timeout=timedelta(seconds=30))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())

    def program(x):
        y = model(x).sum()
        if dist.get_rank() == breaking_rank:
            print("a debugging line")  # after the only tensor code: one graph, and a break
        return y

    try:
        space["same_on"](group, {"attention": settings.get(dist.get_rank(), "flash")})
        torch.compile(program, backend="aot_eager", fullgraph=False)(torch.ones(2, 4))
        space["same_on"](group, space["counts"]())
    except RuntimeError as error:
        return str(error)


def _names(space, which):
    """On a rank: compare dicts of which each rank may have names of its own."""
    try:
        space["same_on"](dist.group.WORLD, which[dist.get_rank()])
    except RuntimeError as error:
        return str(error)


@pytest.mark.slow
def test_the_rule_finds_a_name_that_one_rank_lacks_whichever_rank_it_is(ranks):
    """A value of None counts as a value: a rank that lacks the name differs from it."""
    space = functions("symmetry-same-on")
    for which in ({"cse": None, "x": 1}, {"x": 1}), ({"x": 1}, {"cse": None, "x": 1}):
        (said,) = set(ranks.run(_names, space, which).values())
        assert "'cse'" in said and "'missing'" in said and "'x'" not in said
    assert set(ranks.run(_names, space, ({"cse": None}, {"cse": None})).values()) == {None}


@pytest.mark.slow
def test_the_rule_finds_settings_and_a_break_that_leaves_the_number_of_graphs_alone(ranks):
    space = functions("symmetry-same-on")
    assert set(ranks.run(_checked, space, None, {}).values()) == {None}
    assert all("paged" in said for said in ranks.run(_checked, space, None, {1: "paged"}).values())
    said = set(ranks.run(_checked, space, 1, {}).values())
    assert len(said) == 1 and "'breaks'" in (line := said.pop()) and "'graphs'" not in line


@pytest.mark.slow
def test_a_block_with_one_shape_is_wrong_in_silence_and_the_rule_under_torchrun_names_each_difference(
    tmp_path,
):
    """Lesson 08, sections 3 and 9: rank 0 ends four wrong steps; the script of the lesson says where ranks differ."""
    with labkit.Ranks(2, device="cpu", backend="gloo", stall=1.5, quiet=True) as two:
        cells = "gathers", "planned", "planned-run", "four", "passes", "block", "steps"
        space = lesson_cells.run(LESSON, *cells, ranks=two, **NAMES)
    space["fake"].close()
    assert len(space["wrong"]) == 4 and space["ended"] == "hung"
    script = tmp_path / "rule.py"
    with script.open("w") as file:
        subprocess.run([sys.executable, "-m", "labkit", "program", "08"], stdout=file, check=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run([*launch, script], capture_output=True, text=True, timeout=400, env=env)
    said = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    assert said["two_gathers"] == said["settings"] == "alike", ran.stderr
    differ = {name: set(re.findall(r"'([^']+)': \[", line)) for name, line in said.items() if line != "alike"}
    assert differ == {
        "two_gathers, break on rank 1": {"call 1", "call 2"},
        "same_gather, gradients on rank 0": {"call 2", "call 3"},
        "parallel_block, break on rank 1": {"call 6"},
        "settings, Dynamo's of rank 1": {"dynamo.optimize_ddp"},
        "settings, options on rank 1": {"options"},
        "gradients on rank 0": {"requires_grad"},
        "warmup, break on rank 1": {"breaks"},
    }

"""The suite that a reader copies: on three ranks, with defences that fail, what it leaves behind; its judges; loops."""

from __future__ import annotations

import ast
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from course.break_it import figures, suite
from course.break_it.on_ranks import three
from course.shared import contract
from labkit import Report, lessons

WAITS = {"smoke", "orphan", "wedge", "preflight"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
End = suite.End
each = pytest.mark.parametrize("name", suite.TESTS)


def torchrun(script, *arguments, processes=2):
    """Run a script far away from labkit, as a reader's repository is."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [*TORCHRUN, str(processes), str(script), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=550, cwd=Path(script).parent, env=clean
    )


def copied(folder, *edits):
    text = suite.PATH.read_text()
    for before, after in edits:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    shutil.copy(contract.PATH, folder)
    (folder / "break_it.py").write_text(text)
    return folder / "break_it.py"


@pytest.mark.full
def test_it_holds_on_three_ranks(tmp_path):
    done = torchrun(copied(tmp_path), processes=3)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
def test_a_defence_that_does_nothing_and_one_that_cries_wolf_are_bad_and_the_exit_status_says_so(tmp_path):
    edits = (
        ('"fault + defence": (True, True)', '"fault + defence": (True, False)'),
        ('"right program": (False, True)', '"right program": (True, True)'),
    )
    names = [name for name in suite.TESTS if name not in WAITS]
    done = torchrun(copied(tmp_path, *edits), *names)
    assert done.returncode != 0
    for name in names:
        assert f"{name}, fault + defence: silent" in done.stdout, done.stdout
        assert f"{name}, right program: false alarm" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_request_that_cannot_be_met_is_an_error_and_starts_nothing(tmp_path):
    script = copied(tmp_path)
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert alone.returncode == 2 and "start it with torchrun and at least two processes" in alone.stderr
    assert "unknown test 'digset': there is smoke" in torchrun(script, "digset").stderr


@pytest.mark.slow
def test_no_rank_of_a_run_outlives_the_process_that_forked_it(tmp_path):
    script = copied(tmp_path)
    job = subprocess.Popen(
        [*TORCHRUN, "2", script, "wedge"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        ranks: list[int] = []
        until = time.monotonic() + 200
        while len(ranks) < 2 and time.monotonic() < until:
            time.sleep(0.2)
            parents = children(job.pid)
            ranks = [pid for parent in parents for pid in children(parent)]
        assert len(ranks) == 2
        for parent in children(job.pid):
            os.kill(parent, signal.SIGKILL)
        while any(alive(pid) for pid in ranks) and time.monotonic() < until:
            time.sleep(0.2)
        assert not any(alive(pid) for pid in ranks)
    finally:
        job.terminate()
        job.wait(60)


def children(pid):
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- judges ---

GOOD = {
    "smoke": [End("returned", {"heard": ["infer", "infer", "noop", "infer"], "total": 4.0})] * 2,
    "env": [End("raised", said="ContractError: settings differ: ATTENTION; backend: ['flash', 'paged']")] * 2,
    "orphan": [End("exited", code=-9), End("exited", code=17, said="the leader's heartbeat has not changed")],
    "wedge": [End("returned", "infer"), End("exited", code=17, said="the leader's step has not changed")],
}


@each
def test_a_wait_and_another_error_on_every_rank_are_no_pass(name):
    for ends in ([End("waited")] * 2, [End("returned"), End("waited", said="timed out")]):
        assert not suite.judge(suite.TESTS[name], "fault + defence", ends)["good"]
        assert not suite.judge(suite.TESTS[name], "right program", ends)["good"]
    ends = [End("raised", said="OutOfMemoryError: out of memory")] * 2
    row = suite.judge(suite.TESTS[name], "fault + defence", ends)
    assert (row["good"], row["how"]) == (False, "error")


@pytest.mark.parametrize("name", GOOD)
def test_the_expected_end_passes_and_each_rank_counts(name):
    assert suite.judge(suite.TESTS[name], "fault + defence", GOOD[name])["good"]
    for other in (End("returned", "x"), End("exited", code=1), End("raised", said="ContractError: x")):
        assert not suite.judge(suite.TESTS[name], "fault + defence", [GOOD[name][0], other])["good"]
    assert not suite.judge(suite.TESTS[name], "fault alone", GOOD[name])["good"]


def test_torchs_words_for_a_time_limit_are_a_wait():
    def play(said):
        raise RuntimeError(said)

    for said in ("Timed out waiting 5000ms", "wait timeout after 5000ms", "time out"):
        assert suite.ending(functools.partial(play, said)).how == "waited"


@pytest.mark.parametrize("breaks", [False, True])
def test_the_first_break_is_found_and_nothing_runs(breaks):
    torch._dynamo.reset()

    def program(x):
        x.add_(1)
        if breaks:
            print(x)
        return x * 2

    x = torch.ones(3)
    assert suite.first_break(program, x) == ("print(x)" if breaks else "")
    assert x.tolist() == [1.0] * 3
    module = torch.nn.Sequential(torch.nn.Linear(3, 3))
    module[0].forward = program  # in a method of another module, called from torch's own code
    called = " > ".join(["return model(x)", *["print(x)"] * breaks])
    assert suite.first_break(module, x) == ("print(x)" if breaks else "")

    def outer(x, model=module):
        return model(x)

    assert suite.first_break(outer, x) == (called if breaks else "")
    with torch.compiler.set_stance("force_eager"):
        assert suite.first_break(lambda x: x + 1, x) == "nothing was compiled"
    with torch._dynamo.config.patch(disable=True):
        assert "compiled" in suite.first_break(lambda x: x + 1, x)


# --- the lesson ---


class Bare(ast.NodeTransformer):
    """Leaves annotations out."""

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_FunctionDef(self, node):
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node):
        return ast.Assign([node.target], node.value, lineno=node.lineno)


def test_the_cells_are_the_functions_of_the_two_files():
    both = [node for path in (suite.PATH, contract.PATH) for node in ast.parse(path.read_text()).body]
    ours = {node.name: node for node in both if hasattr(node, "name")}
    shown = {
        node.name: node
        for source in lessons.cells("15_break_it").values()
        for node in ast.parse(source).body
        if hasattr(node, "name")
    }
    assert {"alike", "announce", "smoke", "env", "compile_gate"} <= set(shown)
    for name, node in shown.items():
        assert ast.unparse(Bare().visit(node)) == ast.unparse(Bare().visit(ours[name])), name


def test_a_function_that_is_no_test_is_refused(ranks):
    with pytest.raises(ValueError, match="the suite has no test 'len': there is smoke"):
        three(ranks, len)


def test_a_break_in_a_while_loop_with_gradients_leaves_no_graph_and_no_count_and_the_gate_sees_it():
    torch._dynamo.reset()
    hidden = torch.compiler.disable(lambda x: x * 2)

    def program(x):
        n = 0
        while n < 3:
            x, n = hidden(x @ x), n + 1
        return x

    x, before = torch.full((3, 3), 0.1, requires_grad=True), suite.compiled()
    assert torch.equal(torch.compile(program, backend="eager")(x), program(x))
    assert suite.since(before) == {"graphs": 0, "breaks": 0}
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(program, backend="eager", fullgraph=True)(x)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="later a comprehension is no function of its own")
def test_a_break_in_a_list_comprehension_is_counted_on_python_311():
    torch._dynamo.reset()
    hidden, before = torch.compiler.disable(lambda x: x * 2), suite.compiled()
    torch.compile(lambda x: sum([hidden(x.sin()) for _ in range(3)]), backend="eager")(torch.ones(2))
    assert suite.since(before) == {"graphs": 1, "breaks": 1}


def test_the_figure_names_what_is_bad():
    rows = pd.DataFrame({
        "test": "env", "run": list(suite.RUNS), "good": [True, True, False], "how": ["caught", "silent", "false alarm"],
        "numbers": ["", "wrong numbers", ""], "said": "rank 0: x", "seconds": 0.1,
    })  # fmt: skip
    drawn = figures.figure(Report("break-it", "t", "gloo · cpu", {"tests": rows}))
    assert "0 of 1 tests end as they have to" in drawn.summary and "env false alarm (BAD)" in drawn.summary
    with pytest.raises(ValueError, match="has no table 'tests'"):
        figures.figure(Report("x", "x", "gloo · cpu", {"main": rows}))

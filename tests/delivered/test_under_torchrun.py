"""The delivered contract as a job uses it: copied beside a script, under torchrun, and where processes die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
import torch.distributed as dist

from course.shared import contract

JOB = """
    import os, sys
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    import contract

    fault = sys.argv[1]
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
    os.environ["ATTENTION"] = "paged" if fault == "setting" and last else "flash"
    exchange = contract.Exchange.connect(timeout=60)
    contract.alike(exchange, "settings", contract.settings(env=["ATTENTION"]))

    def program(x):
        y = funcol.all_reduce(x, "sum", dist.group.WORLD)
        if fault == "break" and last:
            torch._dynamo.graph_break()
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD)

    run, x = torch.compile(program, backend="eager"), torch.ones(2)
    with torch.no_grad():
        rounds = len(contract.warm_up(exchange, lambda: (run(x) + 0).tolist()))
        plan = contract.announce(exchange, None if rank else contract.Plan("infer", {"x": x}, calls=2))
        contract.InputDigests(exchange).check(0, x=x + (1e-6 if fault == "input" and last else 0))
        with contract.executing(plan, exchange) as step, contract.crash_after(300):
            for _ in range(3 if fault == "call" and last else 2):
                step()
                x = run(x)
        try:
            exchange.gather("end", 0)
        finally:
            print(f"rank {rank}: {rounds} rounds, {contract.compiled()}, {x.tolist()}", flush=True)

    if rank == 0:
        try:
            contract.send(contract.preflight({"f": lambda: 1}, {"x": x}))
        except contract.PreflightError as error:
            print(error, flush=True)
        contract.send(contract.preflight({"steps": 4}, {"x": x.reshape(2, 1).t(), "n": torch.tensor(3)}))
    else:
        print(f"rank {rank}:", contract.receive(), flush=True)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("job")
    shutil.copy(contract.PATH, made)
    (made / "job.py").write_text(textwrap.dedent(JOB))
    return made


def start(folder, *arguments):
    """Start Python far away from the project, as in a job's folder."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], cwd=folder, env=env, text=True, **pipes)


def job(folder, fault):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    process = start(folder, *torchrun, "job.py", fault)
    said, errors = process.communicate(timeout=550)
    return process.returncode, said, errors


@pytest.mark.slow
def test_a_right_job_goes_through(folder):
    code, said, errors = job(folder, "none")
    assert code == 0, errors[-2000:]
    # two all-reduces on two ranks and a factor of 2: eightfold a call
    for rank in (0, 1):
        assert f"rank {rank}: 2 rounds, {{'graphs': 1, 'breaks': 0}}, [64.0, 64.0]" in said
    assert "meta 'f' (function) cannot be pickled" in said
    assert "rank 1: ({'steps': 4}, {'x': tensor([[64., 64.]]), 'n': tensor(3)})" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words", "everywhere"),
    [
        ("setting", "env ATTENTION: rank 0 'flash', rank 1 'paged'", True),
        ("break", "graphs: rank 0 1, rank 1 2", True),
        ("input", "x: rank 0 '", True),
        ("call", "rank 1: call 3 is 'call', planned were 2 calls", False),
    ],
)
def test_a_rank_that_differs_ends_the_job_with_an_error_that_says_what(folder, fault, words, everywhere):
    code, said, errors = job(folder, fault)
    assert code != 0 and f"ContractError: {'' if everywhere else 'rank'}" in errors
    assert words in errors and "Absent" not in errors
    assert "cannot be pickled" not in said, "nothing after it runs"


WORKER = """
    import sys
    from datetime import timedelta
    import torch.distributed as dist
    import contract
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=300))
    if sys.argv[2] == "on":
        contract.watchdog(store, window=1.0)
    print("up", flush=True)
    store.wait(["never"], timedelta(seconds=300))  # stands for a collective that will not come back
"""
LEADER = """
    import sys, time
    import torch.distributed as dist
    import contract
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
    contract.beat(store, every=0.1)
    print("up", flush=True)
    time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("defence", ["on", "off"])
def test_a_worker_whose_leader_is_gone_leaves(folder, how, defence):
    # the store is in neither of them, as under a launcher: a store that dies would end the wait by itself
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    leader = start(folder, "-c", textwrap.dedent(LEADER), str(store.port))
    processes = [leader]
    try:
        assert leader.stdout.readline() == "up\n"
        worker = start(folder, "-c", textwrap.dedent(WORKER), str(store.port), defence)
        processes.append(worker)
        assert worker.stdout.readline() == "up\n"
        leader.send_signal(how)
        if defence == "off":
            with pytest.raises(subprocess.TimeoutExpired):  # it is still there after five windows
                worker.wait(5)
        else:
            _, said = worker.communicate(timeout=60)
            assert worker.returncode == contract.ORPHANED
            assert "the leader's heartbeat has not changed for 1 s" in said
    finally:
        for process in processes:
            process.kill()
            process.communicate()


CRASH = """
    import threading
    from contract import crash_after
    with crash_after(60):
        pass
    with crash_after(1.0):
        threading.Event().wait()
"""


@pytest.mark.slow
def test_a_call_without_end_crashes_with_its_stack(folder):
    process = start(folder, "-c", textwrap.dedent(CRASH))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1 and "most recent call first" in said and "wait" in said

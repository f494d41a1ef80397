"""A real Jupyter kernel: the %%ranks magic, places as the reader counts them, the stop button, the kernel's end."""

from __future__ import annotations

import os
import re
import socket
import time

import pytest
from kernels import AT_ONCE_S, Kernel, for_each_rank, gone, quiet_seconds

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.run("%load_ext labkit\nimport labkit, os, time\nranks = labkit.Ranks(2, device='cpu')")
    yield kernel
    kernel.close()


def test_in_a_fresh_kernel_the_first_ranks_know_everything_and_the_first_failure_waits_for_nothing(kernel):
    fresh = Kernel()
    try:
        fresh.run(
            "import sys, labkit, torch, torch.distributed as dist\n"
            "def good(names):\n    dist.all_reduce(torch.ones(1))\n    return [n in sys.modules for n in names]\n"
            "def bad():\n    if dist.get_rank():\n        raise ValueError('boom')\n    dist.all_reduce(torch.ones(1))"
        )
        request, awaited = fresh.start("ranks = labkit.Ranks(2, device='cpu', backend='gloo')"), []
        while not any("import of torch, Dynamo and Inductor" in text for text in awaited):
            message = fresh.client.get_iopub_msg(timeout=60)
            if message["msg_type"] == "display_data":
                awaited.append(message["content"]["data"]["text/plain"])
        fresh.finish(request)
        names = ["torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor"]
        assert fresh.run(f"list(ranks.run(good, {names}).values())")["text"] == str([[True] * 3] * 2)
        first, second = (fresh.run("ranks.run(bad)")["error"][1] for _ in range(2))
        for error in (first, second):
            assert "rank 1 raised ValueError: boom" in error and "rank 0 was waiting in all_reduce" in error
    finally:
        fresh.close()


def test_names_persist_on_the_ranks_and_the_last_expression_is_shown_side_by_side(kernel):
    kernel.run("%%ranks\nimport torch, torch.distributed as dist\nx = torch.ones(2) * (dist.get_rank() + 1)")
    found = kernel.run("%%ranks\ndist.all_reduce(x)\nx.tolist()")
    assert found["error"] is None
    assert found["text"] == "PerRank(rank 0: [3.0, 3.0], rank 1: [3.0, 3.0])"
    assert "<th" in found["html"] and "rank 1" in found["html"]


def test_one_rank_only_and_a_statement_shows_nothing(kernel):
    assert (
        kernel.run("%%ranks 1\nos = __import__('os'); os.environ['RANK']")["text"] == "PerRank(rank 1: '1')"
    )
    assert kernel.run("%%ranks\ny = 1")["text"] == ""
    assert kernel.run("%%ranks\n41 + 1;")["text"] == ""


def test_bad_options_are_one_sentence(kernel):
    name, text = kernel.run("%%ranks --speed 3\n1")["error"]
    assert name == "ValueError" and "does not know '--speed'" in text and "usage: %%ranks" in text
    assert "stall must be a number above 0" in kernel.run("%%ranks --stall 0\n1")["error"][1]


def test_the_limits_of_one_cell(kernel):
    wait = "\nimport os, torch, torch.distributed as d\nif os.environ['RANK'] == '1': d.all_reduce(torch.ones(1))"
    assert "for 0.4 s (stall limit)" in kernel.run("%%ranks --stall 0.4" + wait)["error"][1]
    assert "no end within 0.5 s (timeout)" in kernel.run("%%ranks --timeout 0.5" + wait)["error"][1]


def test_output_is_labelled_and_in_the_running_cell(kernel):
    found = kernel.run("def hello():\n    print('hello')\n_ = ranks.run(hello)")
    assert sorted(found["stdout"].splitlines()) == ["[rank 0] hello", "[rank 1] hello"]


def test_an_error_shows_the_readers_own_cell_and_line(kernel):
    kernel.run("def inner(x):\n    return 1 / x\n")
    found = kernel.run("def outer():\n    y = 0\n    return inner(y)\nranks.run(outer)")
    name, text = found["error"]
    assert name == "RankError"
    assert re.search(r"rank 0 \(and rank 1\) raised ZeroDivisionError: division by zero", text)
    assert re.search(r"In \[\d+\]:3 \(outer\) +return inner\(y\)", text)
    assert re.search(r"In \[\d+\]:2 \(inner\) +return 1 / x", text)
    assert "ipykernel" not in text and "labkit/" not in text


def test_a_cell_that_was_run_again_is_named_by_its_last_number(kernel):
    cell = "def agrees(x):\n    assert x"
    kernel.run(cell)
    assert kernel.run("ranks.run(agrees, 1)")["error"] is None
    count = kernel.run(cell)["count"]
    assert f"In [{count}]:2 (agrees)" in kernel.run("ranks.run(agrees, 0)")["error"][1]


def test_an_error_in_a_ranks_cell_counts_lines_as_the_reader_does(kernel):
    found = kernel.run("%%ranks\nz = 1\nraise ValueError('third line')")
    assert f"In [{found['count']}]:3  raise ValueError('third line')" in found["error"][1]
    assert kernel.run("%%ranks\n1 +* 2")["error"][0] == "RankError"


@pytest.mark.parametrize(
    "stuck",
    [
        "def stuck():\n    time.sleep(60)",
        "def stuck():\n    while True: pass",
        "def stuck():\n    import torch, torch.distributed as d\n"
        "    if d.get_rank() == 0: d.all_reduce(torch.ones(1))\n    else: time.sleep(60)",
        "def stuck():\n    import os, torch.distributed as d\n"
        "    d.TCPStore('127.0.0.1', int(os.environ['MASTER_PORT']), is_master=False).wait(['never'])",
    ],
    ids=["sleep", "loop", "collective", "store"],
)
@pytest.mark.parametrize("presses", [1, 2])
def test_the_stop_button(kernel, stuck, presses):
    kernel.run(stuck)
    request = kernel.start("print('started', flush=True)\nranks.run(stuck)")
    time.sleep(0.7)
    pressed = time.monotonic()
    for _ in range(presses):
        kernel.manager.interrupt_kernel()
        time.sleep(0.15)
    found = kernel.finish(request)
    assert quiet_seconds(pressed) < AT_ONCE_S
    assert found["error"] and found["error"][0] == "KeyboardInterrupt", found
    shown = found["error"][1]
    assert (
        "rank 0 was" in for_each_rank(shown) and "All ranks were replaced" in shown and "labkit/" not in shown
    )
    answer = kernel.run(
        "def add():\n    import torch, torch.distributed as d\n    x = torch.ones(1)\n"
        "    d.all_reduce(x)\n    return x.item()\nranks.run(add).same()"
    )
    assert answer["text"] == "2.0"


@pytest.mark.parametrize("how", ["kill", "shutdown", "restart"])
def test_no_process_outlives_its_kernel(how):
    kernel = Kernel()
    try:
        kernel.run("import labkit, os, time\nranks = labkit.Ranks(2, device='cpu', quiet=True)")
        ask = (
            "print(*ranks.run(os.getpid).values(), ranks._pool.spawner.process.pid, "
            "os.getpid(), ranks.run(os.getenv, 'MASTER_PORT')[0])"
        )
        *pids, port = map(int, kernel.run(ask)["stdout"].split())
        with socket.create_connection(("127.0.0.1", port), 1):  # the store is in one of them
            pass
        assert len(pids) == 4 and all(os.path.exists(f"/proc/{pid}") for pid in pids)
        kernel.start("ranks.run(time.sleep, 60)")
        time.sleep(0.5)
        if how == "kill":
            kernel.manager.signal_kernel(9)
        elif how == "restart":
            kernel.manager.restart_kernel(now=True)
        else:
            kernel.manager.shutdown_kernel(now=False)
        # shutdown_kernel returns once the kernel, busy as it is, has ended; its port may be another process's by now
        assert gone(pids, 2) == []
    finally:
        kernel.close()

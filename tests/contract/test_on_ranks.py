"""The contract on real ranks: over the rendezvous store, beside live collectives, and when processes die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch.distributed as dist

from labkit import Ranks
from labkit.contract import ParityError, PlanError, PreflightError
from labkit.ranks import RankError


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        yield ranks


def test_parity_over_the_rendezvous_store_and_the_ranks_are_fine_without(ranks):
    def start(rank_1_says, check):
        from labkit import contract

        me = contract.Exchange.connect("parity-test")
        os.environ["SCOPE_TP_ALLOW_COMPILE"] = rank_1_says if me.rank else "1"
        if check:
            contract.assert_parity(me, contract.settings(env=["SCOPE_TP_ALLOW_COMPILE"]))
        return "started"

    assert ranks.run(start, "1", True).same() == ranks.run(start, "0", False).same() == "started"
    with pytest.raises(RankError) as caught:
        ranks.run(start, "0", True)
    assert isinstance(caught.value.__cause__, ParityError)
    assert "env SCOPE_TP_ALLOW_COMPILE: rank 0 1, rank 1 0" in str(caught.value)
    assert [outcome.kind for outcome in caught.value.outcomes] == ["error", "error"], (
        "all ranks fail together"
    )


def test_a_plan_stops_the_extra_collective_before_it_is_called(ranks):
    def call(layers_of_rank_1):
        import torch
        import torch.distributed as dist

        from labkit import contract

        exchange = contract.Exchange.connect("plan-test")
        x = torch.ones(2)
        with contract.executing(contract.Plan.of("infer", calls=2), exchange) as run:
            for _ in range(layers_of_rank_1 if exchange.rank else 2):
                run.step()
                dist.all_reduce(x)
        return x.tolist()

    assert ranks.run(call, 2).same() == [4, 4]
    with pytest.raises(RankError) as caught:
        ranks.run(call, 3)
    assert isinstance(caught.value.__cause__, PlanError) and caught.value.rank == 1
    assert "rank 1: call 3 is 'call', planned were 2 calls" in str(caught.value)


def test_messages_arrive_and_a_bad_one_strands_nobody(ranks):
    def serve():
        import torch
        import torch.distributed as dist

        from labkit import contract

        x = torch.arange(6.0).reshape(2, 3)
        if dist.get_rank():
            meta, tensors = contract.receive()
            return meta, tensors["x"].tolist(), str(tensors["n"].dtype)
        try:
            contract.send(contract.preflight({"f": lambda: 1}, {"x": x}))
        except PreflightError as error:
            refused = str(error)
        contract.send(contract.preflight({"steps": 4}, {"x": x.t().t(), "n": torch.tensor(3)}))
        return refused

    found = ranks.run(serve, timeout=60, stall=20)
    assert "meta 'f' (function) cannot be pickled" in found[0]
    assert found[1] == ({"steps": 4}, [[0, 1, 2], [3, 4, 5]], "torch.int64")


def _compile(break_on, gate):
    import torch
    import torch.distributed as dist

    from labkit import contract, torch_compat
    from labkit.torch_compat import funcol

    exchange = contract.Exchange.connect("health-test")

    def program(x, talk):
        y = funcol.all_reduce(x, "sum", dist.group.WORLD)
        if talk:
            print("", end="")
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD)

    torch_compat.dynamo_reset()
    compiled = torch.compile(program, backend="eager")
    warm = contract.warm_up(
        exchange, lambda: (compiled(torch.ones(2), exchange.rank in break_on) + 0)[0].item(), gate=gate
    )
    return warm.rounds, warm.health.counts


def test_the_health_gather_sees_a_break_on_one_rank_only(ranks):
    assert ranks.run(_compile, [], True).same() == (2, {"graphs": 1, "breaks": 0, "recompiles": 0})
    assert ranks.run(_compile, [0, 1], True).same() == (2, {"graphs": 2, "breaks": 2, "recompiles": 0})
    ungated = ranks.run(_compile, [1], False)
    assert [counts["graphs"] for _, counts in ungated.values()] == [1, 2], "without the gate nobody notices"
    with pytest.raises(RankError) as caught:
        ranks.run(_compile, [1], True)
    assert "graphs: rank 0 1, rank 1 2" in str(caught.value)
    assert "first other break: rank 0 none, rank 1" in str(caught.value) and "print" in str(caught.value)


WORKER = """
    import sys
    from datetime import timedelta
    import torch.distributed as dist
    from labkit.contract import Watchdog
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=300))
    if sys.argv[2] == "on":
        dog = Watchdog(store, window=1.0)
    print("up", flush=True)
    store.wait(["never"], timedelta(seconds=300))  # stands for a collective that will not come back
"""
LEADER = """
    import sys, time
    import torch.distributed as dist
    from labkit.contract import Heartbeat
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
    beat = Heartbeat(store, every=0.1)
    print("up", flush=True)
    time.sleep(300)
"""


def _start(source, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        *(0, None, subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE),
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("defence", ["on", "off"])
def test_a_worker_whose_leader_is_gone_leaves(how, defence):
    # the store is in neither of them, as under a launcher: a store that dies would end the wait by itself
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [_start(LEADER, str(store.port)), _start(WORKER, str(store.port), defence)]
    leader, worker = processes
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
        leader.send_signal(how)
        if defence == "off":
            with pytest.raises(subprocess.TimeoutExpired):  # it is still there after five windows
                worker.wait(5)
        else:
            _, said = worker.communicate(timeout=60)
            assert worker.returncode == 17
            assert "no heartbeat of the leader" in said
    finally:
        for process in processes:
            process.kill()
            process.communicate()


CRASH = """
    import threading
    from labkit.contract import crash_after
    with crash_after(1.0):
        threading.Event().wait()
"""


@pytest.mark.slow
def test_a_call_without_end_crashes_with_its_stack():
    process = _start(CRASH)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and "most recent call first" in said and "wait" in said

"""Ranks started from a process: results, errors, deaths, timeouts, bad input, and nothing left behind."""

from __future__ import annotations

import ctypes
import operator
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from kernels import AT_ONCE_S, alive, gone, quiet_seconds

import labkit
from labkit.ranks import RankError, pool, spawn


def all_reduce(value):
    import torch
    import torch.distributed as dist

    x = torch.full((3,), float(dist.get_rank() + value))
    dist.all_reduce(x)
    return x.tolist()


def rank_of() -> int:
    return int(os.environ["RANK"])


def test_a_function_runs_on_every_rank_and_its_collective_is_right(ranks):
    found = ranks.run(all_reduce, 1)
    assert found.same() == [3.0, 3.0, 3.0]
    assert len(set(ranks.run(os.getpid).values())) == 2


def test_keyword_arguments_closures_and_tensors_travel(ranks):
    import torch

    weight = torch.arange(4.0)
    found = ranks.run(lambda scale, add=0: weight * scale + add, 2, add=1)
    assert torch.equal(found.same(), torch.tensor([1.0, 3.0, 5.0, 7.0]))


def test_chosen_ranks_only(ranks):
    found = ranks.run(rank_of, ranks=[1])
    assert list(found.items()) == [(1, 1)]
    with pytest.raises(KeyError, match="no value from rank 0: this result has ranks"):
        found[0]


def test_a_function_sent_twice_is_the_same_object(ranks):
    def probe():
        seen = sys.__dict__.setdefault("labkit_probe", [])
        seen.append(sys._getframe().f_code)
        return len(set(map(id, seen))), len(seen)

    ranks.run(probe)
    assert ranks.run(probe).same() == (1, 2)


def test_output_of_python_and_of_c_is_labelled_and_whole(ranks, capfd):
    def speak():
        print("one\ntwo")
        print("oops", file=sys.stderr)
        os.system("echo from a child")
        sys.stdout.write("no newline")

    ranks.run(speak)
    out, err = capfd.readouterr()
    for rank in (0, 1):
        for line in ("one", "two", "from a child", "no newline"):
            assert f"[rank {rank}] {line}\n" in out
        assert f"[rank {rank}] oops\n" in err


def test_output_appears_while_the_call_is_still_running(ranks, monkeypatch):
    seen = []

    class Stream:
        def write(self, text):
            seen.append((time.monotonic(), text))

        def flush(self):
            pass

    def speak():
        print("early")
        time.sleep(0.6)

    monkeypatch.setattr(sys, "stdout", Stream())
    ranks.run(speak)
    end = time.monotonic()
    assert {text for _, text in seen} == {"[rank 0] early\n", "[rank 1] early\n"}
    assert all(end - at > 0.3 for at, _ in seen)


@pytest.mark.parametrize("culprit", [0, 1])
def test_one_rank_raises_while_the_other_waits_in_a_collective(ranks, culprit):
    def half(culprit):
        import torch
        import torch.distributed as dist

        if dist.get_rank() == culprit:
            raise KeyError("lost")
        dist.all_reduce(torch.ones(2))

    before = set(ranks.run(os.getpid).values())
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(half, culprit)
    assert quiet_seconds(started) < AT_ONCE_S
    text = str(caught.value)
    assert caught.value.rank == culprit
    assert text.index(f"rank {culprit} raised KeyError") < text.index(
        f"rank {1 - culprit} was waiting in all_reduce"
    )
    assert 'raise KeyError("lost")' in text and "dist.all_reduce(torch.ones(2))" in text
    assert "test_ranks.py:" in text and os.path.dirname(__file__) not in text
    assert isinstance(caught.value.__cause__, KeyError)
    # new processes, so that the waiting all_reduce cannot pair with this one
    assert before.isdisjoint(ranks.run(os.getpid).values())
    assert ranks.run(all_reduce, 1).same() == [3.0, 3.0, 3.0]


def test_both_ranks_raise_different_errors(ranks):
    def differ():
        if rank_of() == 0:
            raise ValueError("from zero")
        raise TypeError("from one")

    with pytest.raises(RankError) as caught:
        ranks.run(differ)
    assert "rank 0 raised ValueError: from zero" in str(caught.value)
    assert "rank 1 raised TypeError: from one" in str(caught.value)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: os._exit(3), "exit code 3"),
        (lambda: __import__("ctypes").string_at(0), "SIGSEGV"),
    ],
    ids=["sigkill", "exit", "segfault"],
)
def test_a_rank_dies(ranks, end, words):
    def die(end):
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            end()
        dist.all_reduce(torch.ones(2))

    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(die, end)
    assert quiet_seconds(started) < AT_ONCE_S
    assert caught.value.rank == 1
    assert words in str(caught.value) and "rank 0" in str(caught.value)
    assert ranks.run(all_reduce, 1).same() == [3.0, 3.0, 3.0]


def test_a_rank_that_died_between_calls_is_replaced(ranks, capsys):
    pid = ranks.run(os.getpid)[1]
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}"):  # reaped: its connection is closed, too
        time.sleep(0.01)
    assert ranks.run(all_reduce, 1).same() == [3.0, 3.0, 3.0]
    assert "rank 1 (killed by SIGKILL" in capsys.readouterr().err


def test_timeout_says_where_every_rank_stood(ranks):
    def stuck():
        if rank_of() == 0:
            while True:
                pass
        time.sleep(60)

    with pytest.raises(RankError, match="no end within") as caught:
        ranks.run(stuck, timeout=0.5)
    text = str(caught.value)
    assert "time.sleep(60)" in text and ("while True:" in text or "pass" in text)
    assert ranks.run(all_reduce, 1).same() == [3.0, 3.0, 3.0]


@pytest.mark.slow
def test_a_rank_that_sleeps_with_pythons_lock_is_part_of_a_stall(ranks, monkeypatch):
    monkeypatch.setattr(pool, "ANSWER_S", 0.5)  # none of them can answer

    def deadlock():
        import torch.distributed as dist

        if dist.get_rank():
            dist.barrier()
        ctypes.PyDLL(None).sleep(600)

    with pytest.raises(labkit.RankError, match="stalled: the ranks have waited") as caught:
        ranks.run(deadlock, stall=1, timeout=60)
    assert "rank 0 was in native code that holds Python's lock" in str(caught.value)
    assert "rank 1 was waiting in barrier" in str(caught.value)
    with pytest.raises(labkit.RankError, match="stalled: no rank has gone on for 1 s"):
        ranks.run(lambda: ctypes.PyDLL(None).sleep(600), stall=1, timeout=60)
    # one long step of the interpreter holds it too, and is no stall: it works
    assert ranks.run(lambda: 7**1_400_000 % 10**210_000 > 0, stall=1, timeout=120)[0]


def test_a_result_that_cannot_travel_leaves_the_ranks_up(ranks):
    before = list(ranks.run(os.getpid).values())
    with pytest.raises(RankError, match="cannot travel back.*generator") as caught:
        ranks.run(lambda: (i for i in range(3)))
    assert caught.value.ended == "not returned"
    assert list(ranks.run(os.getpid).values()) == before


def test_arguments_that_cannot_travel_are_named_before_any_rank_hears_of_it(ranks):
    before, calls = list(ranks.run(os.getpid).values()), ranks.calls
    with pytest.raises(ValueError, match=r"argument 2 \(generator\) cannot travel"):
        ranks.run(max, 1, (i for i in range(3)))
    with pytest.raises(ValueError, match=r"argument key= \(socket\) cannot travel"):
        ranks.run(max, key=socket.socket())
    assert ranks.calls == calls
    assert list(ranks.run(os.getpid).values()) == before


def test_a_compiled_function_is_refused_with_the_way_out(ranks):
    import torch

    with pytest.raises(ValueError, match="call torch.compile inside the function"):
        ranks.run(torch.compile(all_reduce, backend="eager"))


@pytest.mark.parametrize(
    ("kwargs", "rule"),
    [
        ({"world_size": 0}, "at least 1"),
        ({"world_size": 10_000, "device": "cpu"}, "at most"),
        ({"world_size": 2.0}, "whole number"),
        ({"backend": "mpi"}, "unknown backend 'mpi'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"backend": "nccl", "device": "cpu"}, "needs a GPU, and there is none for a CPU rank"),
        ({"backend": "shm", "device": "cpu", "world_size": 9}, "2 to 8 ranks"),
        ({"timeout": 0}, "timeout must be a number above 0"),
    ],
)
def test_bad_requests_are_refused_before_anything_starts(kwargs, rule, monkeypatch):
    monkeypatch.setattr(spawn, "shared", lambda: pytest.fail("a process was about to be started"))
    with pytest.raises(ValueError, match=rule):
        labkit.Ranks(**{"quiet": True, **kwargs})


def test_an_unsupported_torch_is_refused(monkeypatch):
    monkeypatch.setattr("labkit.hardware.torch_version", lambda: "2.9.1+cpu")
    with pytest.raises(
        RuntimeError, match="torch 2.9.1.cpu is installed; labkit supports torch 2.11 to 2.15"
    ):
        labkit.Ranks(2, device="cpu", quiet=True)


def test_closed_ranks_say_so_and_leave_no_process():
    ranks = labkit.Ranks(2, device="cpu", quiet=True)
    pids = list(ranks.run(os.getpid).values())
    ranks.close()
    ranks.close()
    assert gone(pids, 2.0) == []
    with pytest.raises(RuntimeError, match="closed"):
        ranks.run(os.getpid)


def test_dropped_ranks_end():
    ranks = labkit.Ranks(2, device="cpu", quiet=True)
    pids = list(ranks.run(os.getpid).values())
    del ranks
    assert gone(pids, 2.0) == []


def test_no_files_leak_over_many_groups():
    labkit.Ranks(2, device="cpu", quiet=True).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with labkit.Ranks(2, device="cpu", quiet=True) as ranks:
            ranks.run(all_reduce, 1)
    assert len(os.listdir("/proc/self/fd")) <= before  # an idle zygote of another test may end meanwhile


def test_four_ranks():
    with labkit.Ranks(4, device="cpu", backend="gloo", quiet=True) as ranks:
        assert ranks.run(all_reduce, 0).same() == [6.0, 6.0, 6.0]


def test_the_fake_backend_moves_nothing_and_is_labelled_host_only():
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as ranks:
        assert ranks.label == "host only"
        assert ranks.run(all_reduce, 1) == labkit.PerRank([[1.0] * 3, [2.0] * 3])


def test_the_line_that_says_what_was_chosen_and_why(capsys):
    with labkit.Ranks(2, device="cpu", backend="gloo"):
        pass
    line = capsys.readouterr().out
    assert line.startswith("2 ranks · gloo · cpu (backend='gloo' was asked for") and "up in" in line


def test_big_results_and_arguments(ranks):
    data = os.urandom(48 << 20)
    assert ranks.run(len, data).same() == len(data)
    assert ranks.run(lambda n: b"x" * n, 48 << 20, ranks=[1])[1] == b"x" * (48 << 20)


def test_here_is_known_inside_a_rank_only(ranks):
    from labkit.ranks import here

    assert ranks.run(lambda: here().rank) == labkit.PerRank([0, 1])
    with pytest.raises(RuntimeError, match="only inside a rank"):
        here()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_process_that_started_the_ranks(number):
    program = textwrap.dedent(
        """
        import labkit, os, time
        ranks = labkit.Ranks(2, device="cpu", quiet=True)
        def busy():
            import subprocess
            return os.getpid(), subprocess.Popen(["sleep", "300"]).pid, os.getppid()
        print(*[pid for pids in ranks.run(busy).values() for pid in pids], flush=True)
        ranks.run(time.sleep, 300)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = list(map(int, process.stdout.readline().split()))
        assert len(pids) == 6 and all(map(alive, pids))
        process.send_signal(number)
        process.wait(10)
    assert gone(pids, 2.0) == []


def test_functions_of_one_module_live_in_one_module_on_the_rank(ranks):
    """Dynamo looks the globals of an inlined function up in its module: compiling across two of them must work."""

    def compiled():
        import torch

        return torch.compile(outer, backend="eager", fullgraph=True)(torch.ones(2)).tolist()

    assert ranks.run(compiled).same() == [3.0, 3.0]
    assert ranks.run(lambda reduce: reduce(1), inner).same() == 2


def inner(x):
    return operator.add(x, 1)


def outer(x):
    return inner(inner(x))


@pytest.mark.parametrize("order", [(1, 2, 1), (2, 1, 2)])
def test_a_global_has_the_value_that_it_has_in_the_kernel_now(ranks, order, monkeypatch):
    found = []
    for value in order:
        monkeypatch.setitem(globals(), "SETTING", value)
        found.append(ranks.run(read_setting).same())
    assert tuple(found) == order


SETTING = 0


def read_setting():
    return SETTING

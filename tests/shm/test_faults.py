"""What a collective over shared memory does when something goes wrong: it ends, soon, and says what and who."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

import labkit
from labkit.ranks import RankError

pytestmark = pytest.mark.slow  # seconds of collectives: `make check` leaves them to `make test`


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="shm", timeout=30, quiet=True) as ranks:
        yield ranks


def attempt(make_calls, timeout_s=10.0):
    """In a group of its own, run this rank's call; give (error class, message, seconds)."""
    import datetime
    import time

    import torch.distributed as dist

    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout_s))
    began = time.monotonic()
    found = ("", "", 0.0)
    try:
        make_calls(dist.get_rank(), group)
    except BaseException as error:
        found = (type(error).__name__, str(error), time.monotonic() - began)
    dist.barrier()  # the world is not touched by what happened to the group
    dist.destroy_process_group(group)
    return found


def test_a_killed_peer_ends_the_wait_and_is_named(tmp_path):
    def victim(folder):
        import torch
        import torch.distributed as dist

        rank, x = dist.get_rank(), torch.ones(4)
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), 9)
        began = time.monotonic()
        try:
            dist.all_reduce(x)
        except Exception as error:
            said = {"type": type(error).__name__, "text": str(error), "after": time.monotonic() - began}
            Path(folder, f"{rank}.json").write_text(json.dumps(said))
            raise

    with labkit.Ranks(3, device="cpu", backend="shm", timeout=20, quiet=True) as ranks:
        pid = ranks.run(os.getpid)[1]
        with pytest.raises(RankError) as caught:
            ranks.run(victim, str(tmp_path))
        assert caught.value.rank == 1 and "SIGKILL" in str(caught.value)
        for rank in (0, 2):
            said = json.loads((tmp_path / f"{rank}.json").read_text())
            assert said["type"] in (
                "PeerGone",
                "PeerLeft",
            )  # PeerLeft: it heard of it from the other survivor
            assert f"rank 1 (pid {pid}) is gone" in said["text"]
            assert "all_reduce(sum, float32, 4 elements)" in said["text"]
            assert said["after"] < 5  # a collective of these ranks may take 120
        assert ranks.run(os.getpid)[0]  # new ranks work


def test_a_rank_that_does_not_come_runs_into_the_deadline_of_the_others(three):
    def calls(rank, group):
        import torch
        import torch.distributed as dist

        x = torch.ones(5, dtype=torch.int64)
        dist.broadcast(x, 0, group=group)
        if rank == 2:
            time.sleep(1.5)
        dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)

    first, second, late = three.run(attempt, calls, 0.3).values()
    assert "Deadline" in (first[0], second[0])
    for kind, text, seconds in (first, second):
        assert kind in ("Deadline", "PeerLeft") and seconds > 0.25
        assert re.search(r"waited \d\.\d s in all_reduce\(max, int64, 5 elements\) for rank 2 \(pid", text)
        assert "alive and was in broadcast(root 0, int64, 5 elements) last" in text
    assert late[0] == "PeerLeft" and "is gone from the group" in late[1] and "for rank 2" in late[1]


def test_a_rank_that_never_called_anything_and_a_timeout_of_one_call(three):
    def calls(rank, group):
        import datetime

        import torch.distributed as dist

        if rank == 0:
            time.sleep(0.5)
        else:
            dist.barrier(group=group, timeout=datetime.timedelta(seconds=0.2))

    found = three.run(attempt, calls, 20.0)
    assert found[0] == ("", "", 0.0)
    assert all("has called nothing yet" in found[rank][1] and found[rank][2] < 10 for rank in (1, 2))


MISMATCHES = {
    "operation": ("all_reduce(sum, float32, 4 elements)", "broadcast(root 0, float32, 4 elements)"),
    "dtype": ("all_reduce(sum, float32, 4 elements)", "all_reduce(sum, float64, 4 elements)"),
    "size": ("all_reduce(sum, float32, 4 elements)", "all_reduce(sum, float32, 5 elements)"),
    "reduction": ("all_reduce(sum, float32, 4 elements)", "all_reduce(product, float32, 4 elements)"),
    "root": ("broadcast(root 1, float32, 4 elements)", "broadcast(root 0, float32, 4 elements)"),
    "huge size": ("all_reduce(sum, float32, 4 elements)", "all_reduce(sum, float32, 1000000 elements)"),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_ranks_in_different_calls_all_raise_and_name_both(three, what):
    def calls(rank, group):
        import torch
        import torch.distributed as dist

        odd = rank == 2
        x = torch.ones({"size": 5, "huge size": 1_000_000}.get(what, 4) if odd else 4)
        if odd and what == "dtype":
            x = x.double()
        if what == "root" or (odd and what == "operation"):
            dist.broadcast(x, 0 if odd else 1, group=group)
        else:
            op = dist.ReduceOp.PRODUCT if odd and what == "reduction" else dist.ReduceOp.SUM
            dist.all_reduce(x, op=op, group=group)

    usual, other = MISMATCHES[what]
    found = three.run(attempt, calls)
    for kind, text, seconds in found.values():
        assert kind == "Mismatch" and seconds < 9
        assert f"called {usual}" in text and f"rank 2 called {other}" in text


def test_disagreement_in_the_counts_of_all_to_all_is_seen_by_every_rank(three):
    def calls(rank, group):
        import torch
        import torch.distributed as dist

        taken = [1, 1, 2] if rank == 0 else [1, 1, 1]
        dist.all_to_all_single(torch.zeros(sum(taken)), torch.ones(3), taken, [1, 1, 1], group=group)

    for kind, text, _ in three.run(attempt, calls).values():
        assert kind == "Mismatch"
        assert "rank 2 sends 1 elements to rank 0, which expects 2" in text


def test_an_interrupt_breaks_the_wait_and_the_group_stays_closed(three):
    def calls(rank, group):
        import signal
        import threading

        import torch
        import torch.distributed as dist

        if rank != 0:
            time.sleep(0.5)
            dist.all_reduce(torch.ones(2), group=group)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            dist.barrier(group=group)
        except KeyboardInterrupt:
            dist.all_reduce(torch.ones(2), group=group)
        finally:
            signal.signal(signal.SIGINT, before)

    interrupted, *others = three.run(attempt, calls).values()
    assert interrupted[0] == "ShmError" and "ended earlier and cannot be used again" in interrupted[1]
    assert "KeyboardInterrupt" in interrupted[1]
    for kind, text, _ in others:
        assert kind == "PeerLeft" and "rank 0 stopped in barrier(): KeyboardInterrupt" in text


def test_other_threads_run_while_the_main_thread_waits_and_can_say_where_or_abort(three):
    def calls(rank, group):
        import sys
        import threading

        import torch.distributed as dist

        if rank == 1:
            time.sleep(0.6)
            return
        said = []

        def control():
            time.sleep(0.2)
            said.append(group._board.where())
            group.abort()

        thread = threading.Thread(target=control)
        thread.start()
        try:
            dist.barrier(group=group)
        except Exception as error:
            thread.join()
            raise RuntimeError(f"{said} {group._board.where()!r} {error}") from sys.exc_info()[1]

    found = three.run(attempt, calls)
    for rank in (0, 2):
        kind, text, seconds = found[rank]
        assert kind == "RuntimeError" and seconds < 8
        assert "in barrier(), waiting for rank" in text and "1 since 0." in text and "aborted it" in text


def test_threads_get_their_turn_between_fast_collectives(three):
    def spin():
        import threading

        import torch
        import torch.distributed as dist

        ticks, stop, x = [], threading.Event(), torch.zeros(16)

        def tick():
            while not stop.wait(0.005):
                ticks.append(1)

        thread = threading.Thread(target=tick)
        thread.start()
        go_on, rounds = torch.ones(1), 0
        while go_on.item() and rounds < 20_000:  # about a second of collectives
            dist.all_reduce(x)
            go_on.fill_(float(len(ticks) < 5))
            dist.all_reduce(go_on, op=dist.ReduceOp.MAX)
            rounds += 1
        stop.set()
        thread.join()
        return len(ticks)

    assert min(three.run(spin).values()) >= 5


def test_groups_leave_no_file_no_descriptor_and_no_memory(three):
    def many(times):
        import torch
        import torch.distributed as dist

        def held():
            maps = Path("/proc/self/maps").read_text().count("labkit-shm")
            return (
                len(os.listdir("/proc/self/fd")),
                maps,
                [f for f in os.listdir("/dev/shm") if "labkit" in f],
            )

        dist.barrier()
        before = held()
        for i in range(times):
            group = dist.new_group()
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [3.0] * 3
            if i % 3 == 0:  # leave without a word: others may still be reading
                dist.destroy_process_group(group)
            else:
                dist.barrier(group=group)
                dist.destroy_process_group(group)
        return before, held()

    for before, after in three.run(many, 30).values():
        assert before == after
        assert after[1:] == (1, [])  # the world itself, which has no name


def test_eight_ranks_finish_where_cores_are_few():
    def work():
        import torch
        import torch.distributed as dist

        x = torch.ones(16)
        for _ in range(100):
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
        big = torch.full((300_000,), float(dist.get_rank()))
        dist.all_reduce(big)
        return x.sum().item(), big.min().item(), big.max().item()

    with labkit.Ranks(8, device="cpu", backend="shm", timeout=60, quiet=True) as ranks:
        assert ranks.run(work).same() == (16.0, 28.0, 28.0)


def test_no_room_for_the_segment_is_said_by_every_rank(three):
    def short_of_memory():
        import resource
        import signal

        import torch.distributed as dist

        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            dist.new_group()
        except Exception as error:
            return type(error).__name__, str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    found = list(three.run(short_of_memory).values())
    three.restart()  # c10d has forgotten half of the group
    assert [kind for kind, _ in found] == ["ShmError"] * 3
    assert {text for _, text in found} == {
        "rank 0 has no 1.5 MiB of shared memory for 3 ranks: File too large"
    }


def test_a_rank_that_cannot_come_to_the_memory_says_so_and_the_others_name_it(three):
    def elsewhere():
        import datetime

        import torch.distributed as dist

        if dist.get_rank() == 2:  # as on another machine, where the path leads to something else
            os.readlink = lambda path: "/dev/null"
        try:
            dist.new_group(timeout=datetime.timedelta(seconds=0.5))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    first, second, last = three.run(elsewhere).values()
    three.restart()
    assert "shm joins ranks of one machine" in last and "use gloo" in last
    for text in (first, second):  # the one whose time is up first tells the other
        assert re.match("(Deadline|PeerLeft): ", text)
        assert "in joining the group for rank 2, which never joined the group" in text

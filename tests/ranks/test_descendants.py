"""What a rank has started ends with the rank, in a session of its own or not, however the rank ends."""

from __future__ import annotations

import builtins
import inspect
import os
import subprocess
import sys
import textwrap
import time

import pytest
from kernels import gone

import labkit
from labkit.ranks import RankError, zygote


def family() -> list[int]:
    import subprocess

    daemon = "(setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!)"
    return [
        subprocess.Popen(["sleep", "300"]).pid,
        subprocess.Popen(["sleep", "300"], process_group=0).pid,
        subprocess.Popen(["sleep", "300"], start_new_session=True).pid,
        int(subprocess.check_output(["sh", "-c", daemon])),
        int(subprocess.check_output(["setsid", "sh", "-c", daemon])),
    ]


KINDS = 5


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.fixture
def two():
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as ranks:
        yield ranks


def leave(how: str) -> None:
    if how == "raise":
        raise ValueError
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize("how", ["close", "restart", "raise", "exit", "kill"])
def test_nothing_of_what_a_rank_has_started_outlives_it(two, how):
    started = [pid for pids in two.run(family).values() for pid in pids]
    assert len(started) == 2 * KINDS and all(map(alive, started))
    if how in ("close", "restart"):
        getattr(two, how)()
    else:
        with pytest.raises(RankError):
            two.run(leave, how, ranks=[0])
    assert [pid for pid in started if alive(pid)] == [], "gone, and waited for, as soon as the ranks are"


def test_the_family_of_a_rank_of_another_group_stays(two):
    mine = two.run(family)
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as others:
        others.run(family)
    assert all(alive(pid) for pids in mine.values() for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [9, 15])
def test_nor_the_process_that_made_the_ranks(number):
    program = "import labkit, time\n" + inspect.getsource(family).replace(" -> list[int]", "") + textwrap.dedent(
        """
        ranks = labkit.Ranks(2, device="cpu", backend="fake", quiet=True)
        print(*[pid for pids in ranks.run(family).values() for pid in pids], flush=True)
        ranks.run(time.sleep, 300)
        """
    )  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = list(map(int, process.stdout.readline().split()))
        assert len(started) == 2 * KINDS and all(map(alive, started))
        process.send_signal(number)
        process.wait(10)
    assert gone(started) == []


def test_the_children_of_a_process_with_and_without_linux_list_of_them(monkeypatch):
    children = {subprocess.Popen(["sleep", "300"]).pid for _ in range(3)}
    time.sleep(0.05)
    assert children <= zygote.children()
    listed = zygote.children()
    real = open

    def without(file, *args, **kwargs):
        if str(file).endswith("/children"):
            raise FileNotFoundError
        return real(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", without)
    assert zygote.children() == listed
    monkeypatch.undo()
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)

"""A start ends when its process has died or no longer gets on: a slow or busy machine is no error."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import labkit
from labkit.ranks import pool, process, spawn
from labkit.ranks.process import Effort, StartError

STILL_S = 3.0


@pytest.fixture
def impatient(monkeypatch):
    for module in (process, spawn, pool):
        monkeypatch.setattr(module, "STILL_S", STILL_S)


def zygote(tmp_path, first: str) -> spawn.Spawner:
    """A zygote that runs `first` before it imports anything of ours."""
    (tmp_path / "sitecustomize.py").write_text(first)
    return spawn.Spawner(os.environ | {"PYTHONPATH": str(tmp_path)})


def test_an_import_that_computes_for_longer_than_the_limit_is_waited_for(impatient, tmp_path):
    spins = f"import time\nuntil = time.monotonic() + {3 * STILL_S}\nwhile time.monotonic() < until: pass"
    one, told = zygote(tmp_path, spins), []
    try:
        one.wait_ready(told.append)
        assert one.ready and told[-1] > 2 * STILL_S
    finally:
        one.close()


@pytest.mark.parametrize("why", ["sleeps", "is stopped", "dies"])
def test_an_import_that_does_not_get_on_is_an_error(impatient, tmp_path, why):
    one = zygote(tmp_path, "import os, time\n" + ("os._exit(3)" if why == "dies" else "time.sleep(600)"))
    try:
        if why == "is stopped":
            os.kill(one.process.pid, signal.SIGSTOP)
        says = "ended: exit code 3" if why == "dies" else "importing torch has made no progress for 3 s"
        with pytest.raises(StartError, match=says):
            one.wait_ready()
    finally:
        one.close()


def test_ranks_that_stand_still_as_they_start_are_an_error(impatient, monkeypatch):
    monkeypatch.setattr(pool.Pool, "post", lambda *_: None)  # they wait for a word of who they are
    with pytest.raises(labkit.RankError, match="could not be started"):
        labkit.Ranks(2, device="cpu", backend="gloo", quiet=True)


def test_effort_tells_work_from_waiting():
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            pass

    mine = Effort([os.getpid()])
    thread = threading.Thread(target=spin)
    thread.start()
    for _ in range(4):
        time.sleep(process.SAMPLE_S)
        assert mine.still_s() < 2 * process.SAMPLE_S
    stop.set()
    thread.join()
    gone = Effort([2**22 + 1])  # above the highest pid: what has ended does not move
    time.sleep(1.2 * process.SAMPLE_S)
    assert gone.still_s() > process.SAMPLE_S

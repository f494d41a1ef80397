"""`Ranks.interrupt` ends a call that runs in another thread, as the stop button does; the ranks compute right after."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from kernels import gone

import labkit
from labkit.pace import patience
from labkit.ranks import call as calls
from labkit.ranks.interrupts import interrupt_thread

pytestmark = pytest.mark.slow


def begun(folder: str) -> None:
    open(os.path.join(folder, str(dist.get_rank())), "w").close()


def computes(folder: str) -> None:
    begun(folder)
    while True:
        torch.ones(64, 64) @ torch.ones(64, 64)


def waits_in_a_collective(folder: str) -> None:
    begun(folder)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(600)


def compiles(folder: str) -> None:
    def backend(graph, inputs):
        begun(folder)
        while True:
            time.sleep(0.01)

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))


def total() -> float:
    x = torch.full((1,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    return x.item()


class Thread(threading.Thread):
    """A call in a thread, with what came of it."""

    def __init__(self, do, *args):
        super().__init__(daemon=True)
        self.do, self.args, self.value, self.error = do, args, None, None
        self.start()

    def run(self):
        try:
            self.value = self.do(*self.args)
        except BaseException as error:
            self.error = error

    def ended(self):
        self.join(patience(60))
        assert not self.is_alive()
        return self


@pytest.fixture(scope="module", params=["gloo", "shm"])
def both(request):
    ranks = labkit.Ranks(2, device="cpu", backend=request.param, stall=None, live=False, quiet=True)
    yield ranks
    pids = [member.process.pid for member in ranks._pool.members]
    ranks.close()
    assert gone(pids) == []


def until(done) -> None:
    deadline = time.monotonic() + patience(60)
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("do", [computes, waits_in_a_collective, compiles], ids=lambda do: do.__name__)
@pytest.mark.parametrize("times", [1, 2])
def test_a_call_in_another_thread_ends(both, tmp_path, do, times):
    old = [member.process.pid for member in both._pool.members]
    call = Thread(lambda: both.run(do, str(tmp_path), timeout=None))
    until(lambda: len(os.listdir(tmp_path)) == 2)
    assert [both.interrupt() for _ in range(times)] == [True] * times
    assert isinstance(call.ended().error, KeyboardInterrupt), call.error
    (said,) = call.error.__notes__
    assert "\nrank 0 " in said and f"({do.__name__})" in said and "All ranks were replaced" in said
    assert both.interrupt() is False and both.run(total).same() == 3.0
    assert gone(old) == []


def test_nothing_runs(both):
    assert both.interrupt() is False
    assert both.run(total).same() == 3.0  # it is not kept for the next call
    with pytest.raises(labkit.RankError):
        both.run(int, "no number")
    assert both.interrupt() is False and both.run(total).same() == 3.0


def test_the_main_thread_waits(both, tmp_path):
    stopper = Thread(lambda: until(both.interrupt))
    with pytest.raises(KeyboardInterrupt):
        both.run(computes, str(tmp_path), timeout=None)
    stopper.ended()
    assert stopper.error is None and both.run(total).same() == 3.0


def test_after_a_failure_the_other_ranks_are_not_waited_for(both, monkeypatch):
    monkeypatch.setattr(calls, "GRACE_S", 600)

    def one_raises():
        if dist.get_rank() == 0:
            raise ValueError
        time.sleep(600)

    call = Thread(lambda: both.run(one_raises, timeout=None))
    until(
        lambda: (
            both._stop is not None
            and any(m.outcome and m.outcome.kind == "error" for m in both._pool.members)
        )
    )
    both.interrupt()
    assert isinstance(call.ended().error, KeyboardInterrupt) and both.run(total).same() == 3.0


def test_a_thread_is_interrupted_in_a_call_and_between_calls(both, tmp_path):
    call = Thread(lambda: both.run(waits_in_a_collective, str(tmp_path), timeout=None))
    until(lambda: len(os.listdir(tmp_path)) == 2)
    interrupt_thread(call)
    assert isinstance(call.ended().error, KeyboardInterrupt) and "All ranks" in call.error.__notes__[0]

    def calls_for_ever():
        while True:
            both.run(total)

    for _ in range(20):  # wherever it is: no lock stays taken, no call half-way
        call = Thread(calls_for_ever)
        until(lambda: both._stop is not None)
        interrupt_thread(call)
        assert isinstance(call.ended().error, KeyboardInterrupt), call.error
        assert both.run(total).same() == 3.0
    interrupt_thread(call)  # it has ended: nothing happens


def test_an_interrupt_in_the_middle_of_a_call_leaves_no_lock_taken(both, monkeypatch):
    begin = labkit.Ranks._begin

    def begins(self):
        begin(self)
        interrupt_thread(threading.current_thread())
        time.sleep(0)  # an exception here would leave the ranks busy for ever

    monkeypatch.setattr(labkit.Ranks, "_begin", begins)
    call = Thread(lambda: both.run(total))
    assert isinstance(call.ended().error, KeyboardInterrupt)
    monkeypatch.undo()
    assert both.run(total).same() == 3.0

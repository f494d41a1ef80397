"""What an error says: strange exceptions, groups, recursion, ranks that say the same, ranks that labkit ended."""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
import time

import pytest

import labkit
from labkit.ranks import Outcome, RankError


def error_of(group, fn, *args, **options) -> str:
    with pytest.raises(RankError) as caught:
        group.run(fn, *args, **options)
    return str(caught.value)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Odd(Exception):
    __notes__ = 5  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Mute, r"raised Mute: \(no text: its __str__ raised RuntimeError\)"), (Odd, "raised Odd")],
)
def test_an_exception_of_which_nothing_can_be_asked_shows_its_line(ranks, kind, words):
    def fail(kind):
        raise kind

    text = error_of(ranks, fail, kind)
    assert re.search(rf"rank 0 \(and rank 1\) {words}\n +test_error_texts.py:\d+ \(fail\) +raise kind", text)


def down(n):
    return up(n + 1)


def up(n):
    return down(n + 1)


def test_a_recursion_is_shown_once(ranks):
    text = error_of(ranks, lambda: down(0))
    assert re.search(
        r"\(down\) +return up\(n \+ 1\)\n.*\(up\).*\n +\.\.\. the same 2 lines \d{3} times more", text
    )
    assert len(text.splitlines()) < 12


def test_a_group_shows_its_members_and_their_lines(ranks):
    def several():
        found = []
        for i in range(10):
            try:
                raise ValueError(f"number {i}")
            except ValueError as error:
                found.append(error)
        raise ExceptionGroup("all", [ExceptionGroup("first", found), KeyError("last")])

    text = error_of(ranks, several)
    assert re.search(r"rank 0 \(and rank 1\) raised ExceptionGroup: all \(2 sub-exceptions\)\n", text)
    assert re.search(r"\n    1\. ExceptionGroup: first \(10 sub-exceptions\)\n", text)
    assert re.search(
        r"\n        1\. ValueError: number 0\n +test_error_texts.py:\d+ \(several\) +raise Val", text
    )
    assert "number 7" in text and "number 8" not in text and "\n        ... 2 more exceptions\n" in text
    assert "\n    2. KeyError: 'last'\n" in text


def test_ranks_that_say_the_same_say_it_together():
    def stuck():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 2:
            time.sleep(60)
        dist.all_reduce(torch.ones(1))

    with labkit.Ranks(6, device="cpu", backend="gloo", quiet=True) as six:
        text = error_of(six, stuck, timeout=1.5)
    assert text.count("was waiting in all_reduce here:") == 1
    assert "rank 0 (and ranks 1 and 3 to 5) was waiting in all_reduce here:" in text
    assert "rank 2 was here:" in text


def test_ranks_with_other_messages_do_not():
    both = [Outcome(0, "error", "ValueError", "mine"), Outcome(1, "error", "ValueError", "other")]
    text = str(RankError("failed", [*both, Outcome(2, "ok")], ended="raised"))
    assert text.splitlines()[1:] == [
        "rank 0 raised ValueError: mine",
        "rank 1 raised ValueError: other",
        "rank 2 finished its part.",
    ]


def test_a_stopped_rank_is_called_that():
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        os.kill(ranks.run(os.getpid)[1], signal.SIGSTOP)
        text = error_of(ranks, os.getpid, timeout=0.3)
        assert "rank 1 was stopped by a signal; SIGCONT lets it go on" in text
        pid = ranks.run(os.getpid)[1]
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        assert len(ranks.run(os.getpid)) == 2


def test_ranks_that_another_thread_closes_end_the_call_and_stay_closed():
    ranks = labkit.Ranks(2, device="cpu", backend="fake", quiet=True)
    pids = list(ranks.run(os.getpid).values())
    timer = threading.Timer(0.3, ranks.close)
    timer.start()
    with pytest.raises(RuntimeError, match="these ranks were closed while this call ran"):
        ranks.run(time.sleep, 60)
    timer.join()
    assert ranks.restarts == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_rank_that_lost_its_kernel_and_ended_itself_is_not_out_of_memory(ranks):
    def cut():
        import socket

        for name in os.listdir("/proc/self/fd"):
            try:
                copy = socket.socket(fileno=os.dup(int(name)))
            except OSError:
                continue
            if copy.family == socket.AF_UNIX:
                copy.shutdown(socket.SHUT_RDWR)
        time.sleep(60)

    text = error_of(ranks, cut, ranks=[1])
    assert (
        "rank 1 died: labkit ended it, because its connection to the process that made the ranks was lost"
        in text
    )
    assert "memory" not in text


def test_when_the_zygote_is_killed_the_next_call_has_new_ranks(capsys):
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as ranks:
        pids = list(ranks.run(os.getpid).values())
        os.kill(ranks.run(os.getppid)[0], signal.SIGKILL)
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            time.sleep(0.01)
        assert set(ranks.run(os.getpid).values()).isdisjoint(pids)
        assert "had ended since the last call: ranks replaced" in capsys.readouterr().err


def test_what_keeps_a_function_from_travelling_is_named(ranks):
    lock = threading.Lock()

    def helper():
        return [lock for _ in range(2)]

    def inner():
        return (lambda: ranks)().world_size

    for fn, words in {
        (lambda: len(ranks)): r"variable 'ranks' in <lambda>\(\): ranks stay in the process that made them",
        inner: r"function 'inner' .* variable 'ranks' in inner\(\): ranks stay",
        (lambda: helper()): r"variable 'lock' in helper\(\): cannot pickle '_thread.lock' object",
        uses_global: r"variable 'LOCK' in uses_global\(\): cannot pickle",
    }.items():
        with pytest.raises(ValueError, match=words):
            ranks.run(fn)


LOCK = threading.Lock()


def uses_global():
    return LOCK


async def later():
    return 1


async def many():
    yield 1


class Callable:
    async def __call__(self):
        return 1


@pytest.mark.parametrize("fn", [later, many, Callable(), functools.partial(later)])
def test_an_async_function_is_refused_before_it_runs(ranks, fn):
    calls = ranks.calls
    with pytest.raises(ValueError, match=r"is an async def: give one that calls asyncio.run"):
        ranks.run(fn)
    assert ranks.calls == calls

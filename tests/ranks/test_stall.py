"""When a call has stalled: every unfinished rank waits, and none gets on, for as long as the limit says."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from oddrank.live.failure import Outcome
from oddrank.live.introspect import Activity

from labkit.ranks import call
from labkit.ranks.progress import Progress

LIMIT_S, STALL_S = 60.0, 5.0


def waits(progress: int) -> Activity:
    return Activity((progress,), "all_reduce", "In [5]:3 (step)", False)


RUNS = Activity((0,), "", "In [5]:4 (step)", False)


@pytest.fixture
def watched(monkeypatch):
    """How a call ends on two ranks that say, from one look to the next, what `said` has; without a real second."""
    clock = [0.0]
    monkeypatch.setattr(call, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def watched(*said, finished=()):
        members = []
        for rank, answers in enumerate(said):
            ok = Outcome(rank, "ok")
            members.append(SimpleNamespace(rank=rank, outcome=None, finished=ok, activity=None, state=""))
            members[-1].answers = iter(answers)
            if rank in finished:
                members[-1].outcome = ok

        def ask(question, unfinished):
            for member in unfinished:
                member.activity = next(member.answers)

        def pump(done, limit):
            clock[0] += limit
            return done()

        pool = SimpleNamespace(ask=ask, pump=pump)
        clock[0] = 0.0
        one = call.Call(pool, members, 1, LIMIT_S, STALL_S, Progress("2 ranks", wanted=False), began=0.0)
        return one.watch(), clock[0]

    return watched


def test_ranks_that_wait_without_progress_have_stalled_after_the_limit_and_soon(watched):
    how, seconds = watched(itertools.repeat(waits(1)), itertools.repeat(waits(2)))
    assert how == "stalled" and STALL_S <= seconds <= STALL_S + 3
    how, _ = watched(itertools.repeat(waits(1)), [], finished=[1])
    assert how == "stalled"


@pytest.mark.parametrize(
    "said",
    [
        (
            map(waits, itertools.count()),
            itertools.repeat(waits(1)),
        ),  # always in a collective, never in the same
        (itertools.repeat(RUNS), itertools.repeat(waits(1))),
        (itertools.cycle([waits(1), waits(1), RUNS]), itertools.repeat(waits(1))),
    ],
    ids=["one gets on", "one runs", "one runs now and then"],
)
def test_where_one_gets_on_the_call_goes_on_to_its_time_limit(watched, said):
    how, seconds = watched(*said)
    assert how == "timeout" and seconds == pytest.approx(LIMIT_S)

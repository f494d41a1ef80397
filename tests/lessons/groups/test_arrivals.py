"""Processes that meet at a store: all there, one that stands still, and what the watcher says of it."""

from __future__ import annotations

import os

import pytest

from course.groups.arrivals import HIDDEN, Arrival, meet


def join():
    import datetime

    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    return f"{dist.get_rank()} of {dist.get_world_size()}, process {os.getpid()}"


def stands_still():
    import time

    time.sleep(600)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def late():
    return meet(join, [Arrival(0, 3), Arrival(1, 3), Arrival(2, 3, after=0.7)], patience=40)


@pytest.mark.slow
def test_all_get_in_and_each_leaves_a_key(late):
    processes, keys = late.tables["processes"], late.tables["keys"]
    assert list(processes["outcome"]) == ["joined"] * 3
    assert [value.partition(",")[0] for value in processes["value"]] == ["0 of 3", "1 of 3", "2 of 3"]
    assert {key.rpartition("/")[2] for key in keys["key"] if key != HIDDEN} == {"0", "1", "2"}
    assert HIDDEN in set(keys["key"])  # the counter of those who have come
    assert all(key.startswith("default_pg/0//cpu//") for key in keys["key"] if key != HIDDEN)


@pytest.mark.slow
def test_nobody_goes_on_before_the_last_has_come_and_rank_0_writes_after_that(late):
    processes, keys = late.tables["processes"], late.tables["keys"].set_index("key")
    assert processes["came"].max() >= 0.7
    assert processes["ended"].min() >= processes["came"].max()
    own = next(key for key in keys.index if key.endswith("/0"))
    assert keys.loc[own, "seconds"] >= processes["came"].max()


@pytest.mark.slow
def test_no_process_outlives_the_meeting(late):
    pids = [int(value.rpartition(" ")[2]) for value in late.tables["processes"]["value"]]
    assert not any(alive(pid) for pid in pids)


@pytest.mark.slow
def test_who_does_not_come_back_is_ended_when_patience_is_over():
    report = meet(stands_still, [Arrival(0, 1)], patience=1.0)
    assert list(report.tables["processes"]["outcome"]) == ["still waiting"]
    assert report.tables["processes"]["ended"][0] == 1.0
    assert report.tables["keys"].empty
    assert report.notes == ["nobody served a store at MASTER_ADDR and MASTER_PORT"]


@pytest.mark.parametrize(
    "one", [Arrival(-1, 2), Arrival(0, 0), Arrival(0, 2, after=-1), Arrival(0, 2, after=9)]
)
def test_arrivals_that_cannot_be_are_refused(one):
    with pytest.raises(ValueError, match="rank and world_size count from 0 and 1"):
        meet(join, [one], patience=6)

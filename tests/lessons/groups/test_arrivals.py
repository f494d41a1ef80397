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


@pytest.mark.slow
def test_nobody_goes_on_before_the_last_has_come_and_each_leaves_a_key_and_no_process():
    late = meet(join, [Arrival(0, 3), Arrival(1, 3), Arrival(2, 3, after=0.7)], patience=40)
    processes, keys = late.tables["processes"], late.tables["keys"].set_index("key")["seconds"]
    assert list(processes["outcome"]) == ["joined"] * 3
    assert [value.partition(",")[0] for value in processes["value"]] == ["0 of 3", "1 of 3", "2 of 3"]
    assert processes["came"].max() >= 0.7
    assert processes["ended"].min() >= processes["came"].max()
    assert HIDDEN in keys  # the counter of those who have come
    own = {key.rpartition("/")[2]: seconds for key, seconds in keys.drop(HIDDEN).items()}
    assert set(own) == {"0", "1", "2"} and own["0"] >= processes["came"].max()
    assert keys.drop(HIDDEN).index.str.startswith("default_pg/0//cpu//").all()
    assert not any(alive(int(value.rpartition(" ")[2])) for value in processes["value"])


@pytest.mark.slow
def test_who_does_not_come_back_is_ended_when_patience_is_over():
    report = meet(stands_still, [Arrival(0, 1)], patience=1.0)
    assert list(report.tables["processes"]["outcome"]) == ["still waiting"]
    assert report.tables["processes"]["ended"][0] == 1.0
    assert report.tables["keys"].empty
    assert report.notes == ["nobody served a store at MASTER_ADDR and MASTER_PORT"]


def test_arrivals_that_cannot_be_are_refused():
    for one in (Arrival(-1, 2), Arrival(0, 0), Arrival(0, 2, after=-1), Arrival(0, 2, after=9)):
        with pytest.raises(ValueError, match="rank and world_size count from 0 and 1"):
            meet(join, [one], patience=6)

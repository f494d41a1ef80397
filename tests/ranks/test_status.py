"""What the group says of itself: the status table, and that an idle group costs no processor time."""

from __future__ import annotations

import os
import signal
import time

import labkit
from labkit.pace import patience
from labkit.ranks.status import COLUMNS, Status, own_memory


def test_one_row_a_rank(ranks):
    before = ranks.status()[0]["calls"]
    pids = ranks.run(os.getpid)
    status = ranks.status()
    assert [row["pid"] for row in status] == list(pids.values()) and len(status) == 2
    assert [row["state"] for row in status] == ["idle", "idle"]
    assert status[0]["calls"] == before + 1
    assert all(1 < row["memory_mb"] < 500 for row in status)
    assert list(status.frame().columns) == list(COLUMNS) and list(status.frame()["rank"]) == [0, 1]


def test_text_and_html_say_the_same(ranks):
    status = ranks.status()
    for row in status:
        assert str(row["pid"]) in repr(status) and f">{row['pid']}</td>" in status._repr_html_()
    assert repr(status).splitlines()[0] == ranks.describe()
    assert "<script>" not in Status([{**status[0], "state": "<script>"}], "x")._repr_html_()


def test_a_rank_that_died_restarts_and_the_end():
    with labkit.Ranks(2, device="cpu", quiet=True) as ranks:
        os.kill(ranks.status()[1]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + patience(5)
        while ranks.status()[1]["state"] == "idle" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [row["state"] for row in ranks.status()] == [
            "idle",
            "gone: killed by SIGKILL (out of memory is one cause)",
        ]
        assert ranks.status()[1]["memory_mb"] is None
        ranks.restart()
        assert [row["state"] for row in ranks.status()] == ["idle", "idle"]
        assert ranks.status()[0]["restarts"] == 1
    assert [row["state"] for row in ranks.status()] == ["closed", "closed"]


def test_memory_of_a_process_that_is_not_there():
    assert own_memory(2**22 + 1) is None


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_an_idle_group_uses_no_processor_time(ranks):
    pids = [*(row["pid"] for row in ranks.status()), ranks.run(os.getppid).same()]

    def ticks() -> int:  # hundredths of a second
        used = 0
        for pid in pids:
            with open(f"/proc/{pid}/stat") as file:
                user, system = file.read().rsplit(")", 1)[1].split()[11:13]
            used += int(user) + int(system)
        return used

    before = ticks()
    ranks.run(spin, 0.3)
    assert ticks() - before >= 10, "work is counted"
    time.sleep(0.2)  # what the last call left to do
    before = ticks()
    time.sleep(1.5)
    assert ticks() - before <= 8, "gloo has a loop of its own; one that polls for us would take a hundred"


def test_a_group_is_its_ranks_and_one_zygote(ranks):
    zygote = ranks.run(os.getppid).same()
    with open(f"/proc/{zygote}/task/{zygote}/children") as file:
        assert {row["pid"] for row in ranks.status()} <= set(map(int, file.read().split()))
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        assert zygote in map(int, file.read().split())
    with open(f"/proc/{zygote}/cmdline") as file:
        assert "labkit.ranks.zygote" in file.read()

"""A long call shows how it stands while it runs, and leaves one line."""

from __future__ import annotations

import time

import pytest
from kernels import LIVE
from oddrank.live.introspect import Activity

from labkit.ranks.progress import Progress


class Rank:
    def __init__(self, rank, state):
        self.rank, self.state = rank, state


def messages(lesson, code: str) -> tuple[list[dict], float]:
    """Every display of a cell, first and renewed, and how long the cell took."""
    began = time.monotonic()
    request = lesson.kernel.start(code)
    found = []
    while True:
        message = lesson.kernel.client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        assert kind != "error", content
        if kind in ("display_data", "update_display_data"):
            found.append({"kind": kind, **content})
        if kind == "status" and content["execution_state"] == "idle":
            return found, time.monotonic() - began


@pytest.mark.kernel
def test_a_long_call_shows_each_ranks_state_and_its_collective(lesson):
    shown, _ = messages(
        lesson,
        "def slow():\n    if dist.get_rank():\n        dist.all_reduce(torch.ones(1))\n    else:\n"
        "        time.sleep(4.2)\n        dist.all_reduce(torch.ones(1))\nfor _ in range(1): ranks.run(slow)",
    )
    assert [m["kind"] for m in shown][:2] == ["display_data", "update_display_data"]
    assert len({m["transient"]["display_id"] for m in shown}) == 1
    assert all(m["metadata"] == LIVE for m in shown)
    during, last = shown[-2]["data"], shown[-1]["data"]
    for text in (during["text/plain"], during["text/html"]):
        assert "running at In [" in text and ":5 (slow)" in text
        assert "waiting in all_reduce at In [" in text and ":3 (slow)" in text
    assert last["text/plain"] == "2 ranks · gloo · cpu: done, 4 s"
    assert "rank 0" not in last["text/plain"]


@pytest.mark.kernel
def test_a_short_call_shows_nothing(lesson):
    shown, _ = messages(lesson, "ranks.run(time.sleep, 0.5);")
    assert [m for m in shown if m["metadata"] == LIVE] == []


@pytest.mark.kernel
def test_one_output_for_the_calls_of_a_cell_and_none_where_it_is_not_wanted(lesson):
    code = "quiet = labkit.Ranks(1, device='cpu', backend='gloo', quiet=True, live=False)\n"
    shown, _ = messages(lesson, code + "quiet.run(time.sleep, 2.6); quiet.close()")
    assert shown == []
    shown, _ = messages(lesson, "for _ in range(2): ranks.run(time.sleep, 2.6)")
    assert [m["kind"] for m in shown].count("display_data") == 1
    assert len(shown) >= 4


@pytest.mark.kernel
def test_compiling_is_told_from_running(lesson):
    shown, _ = messages(
        lesson,
        "def late(gm, inputs):\n    time.sleep(3)\n    return gm\n"
        "def build():\n    torch.compile(lambda x: x + 1, backend=late)(torch.ones(1))\n_ = ranks.run(build)",
    )
    texts = [message["data"]["text/plain"] for message in shown[:-1]]
    # it may be done before rank 1 is
    assert "rank 0  compiling at In [" in [text for text in texts if "rank 0  finished" not in text][-1]


def test_a_start_says_what_it_waits_for_from_its_second_second_on(monkeypatch):
    monkeypatch.setattr("labkit.ranks.progress._in_kernel", lambda: True)
    live, shown = Progress("2 ranks"), []
    monkeypatch.setattr(live, "_display", lambda how="running": shown.append(live.text(how)))
    with live.of_start("an import") as waiting:
        waiting(0.5)
        assert not shown
        waiting(1.2)
    assert shown == ["2 ranks: starting, 1 s\n  waits for  an import", "2 ranks: started, 1 s"]
    with pytest.raises(OSError), live.of_start("an import") as waiting:
        waiting(3.0)
        raise OSError
    assert shown[-1] == "2 ranks: not started, 3 s"


def test_the_last_line_has_the_time_of_the_whole_call(monkeypatch):
    monkeypatch.setattr("labkit.ranks.progress._in_kernel", lambda: True)
    live, shown = Progress("2 ranks"), []
    monkeypatch.setattr(live, "_display", lambda how="running": shown.append(live.text(how)))
    live.show([Rank(0, "running")], 4.4)
    live.end("done", 5.1)
    assert shown == ["2 ranks: running, 4 s\n  rank 0  running", "2 ranks: done, 5 s"]


def test_where_nobody_looks_nothing_is_shown(capsys):
    live = Progress("2 ranks")
    live.show([Rank(0, "running")], 100.0)
    assert not live.wanted and capsys.readouterr().err == ""


def test_a_state_cannot_inject_markup():
    live = Progress("2 ranks", wanted=False)
    live.states = [("rank 0", Activity((), "", "In [1]:1 (<lambda>)", False).describe())]
    assert "&lt;lambda&gt;" in live._html("running") and "<lambda>" not in live._html("running")

"""What a record says about compiling: recompiles, the limit, caches, ids that Dynamo uses twice, what it forgets."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path

import pytest
import torch
from oddrank.record import compiles, process, record
from oddrank.record.compiles import Try
from oddrank.record.tables import Compile
from oddrank.record.timeline import Event

from oddrank import torch_names

pytestmark = pytest.mark.usefixtures("fresh")
HERE = Path(__file__).name


def line_of(function, text: str) -> int:
    """The line of this file where some text of a function stands."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_recompiles_say_which_guard_failed_and_where():
    def branch(x, flag):
        y = x.sin()
        if flag:
            y = y + 1
        return y

    run = torch.compile(branch, backend="eager")
    with record() as rec:
        for size, flag in ((4, True), (5, True), (5, False)):
            run(torch.ones(size), flag)
    size, flag = (mark for mark in rec.marks if mark.kind == "recompile")
    assert size.name.startswith("tensor 'x' size mismatch at index 0. expected 4, actual 5")
    assert size.place == f"{HERE}:{line_of(branch, 'def branch')} (branch)"
    assert flag.name == "flag == True" and flag.via.endswith(f":{line_of(branch, 'if flag')}")
    assert [row.again for row in rec.compiles] == [False, True, True] and rec.counts[0].recompiles == 2
    with record() as warm:
        run(torch.ones(5), False)
    assert warm.counts[0].recompiles == 0


def test_a_compile_that_is_interrupted_has_not_ended():
    def interrupted(graph, inputs):
        raise KeyboardInterrupt

    for fullgraph in (False, True):
        run = torch.compile(lambda x: x + 1, backend=interrupted, fullgraph=fullgraph)
        with pytest.raises(KeyboardInterrupt), record() as rec:
            run(torch.ones(3))
        assert [row.outcome for row in rec.compiles] == ["unfinished"] and rec.counts[0].gave_up == 0


def test_a_frame_that_is_given_up_stays_so_until_dynamo_is_reset():
    def sized(x):
        return x + 1

    def loop(x):
        for _ in range(2):
            torch._dynamo.graph_break()
            x = x + 1
        return x

    limited, looped = (torch.compile(fn, backend="eager") for fn in (sized, loop))
    with torch_names.require("torch._dynamo.config").patch(recompile_limit=2):
        for _ in range(2):
            with record() as rec:
                for n in range(1, 5):
                    limited(torch.ones([2] * n))
                looped(torch.ones(2))
            limit, broke = (row for row in rec.breaks if row.kind == "gave-up")
            assert limit.frame == "sized" and limit.reason.startswith("recompile limit: ")
            assert (
                broke.frame == "loop"
                and broke.executed == 0
                and "graph break in loop, after: " in broke.reason
            )
            assert broke.place == f"{HERE}:{line_of(loop, 'graph_break()')} (loop)"
    assert not broke.during
    torch_names.dynamo_reset()
    with record() as after:
        torch.ones(3).sin()
    assert not after.breaks


@pytest.mark.slow
def test_compiles_give_seconds_and_say_whether_the_cache_was_hit():
    def run():
        torch_names.dynamo_reset()
        with record() as rec:
            torch.compile(lambda x: x * 3 + 1)(torch.ones(3))
        return rec.compiles[0]

    run()
    row = run()
    assert row.cached is True and row.during and row.seconds > row.backend_s > 0
    with record() as rec:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert rec.compiles[0].cached is None


def test_a_reused_compile_id_names_the_code_that_ran():
    def first(x):
        return x + 1

    def second(x):
        return x * 2

    a = torch.compile(first, backend="eager")
    a(torch.ones(2))
    with record() as rec:
        with rec.forward():
            a(torch.ones(2))
        torch_names.dynamo_reset()
        with rec.forward():
            torch.compile(second, backend="eager")(torch.ones(2))
    assert [(row.func, row.id, row.runs) for row in rec.compiles] == [
        ("first", "0/0", 1),
        ("second", "0/0 (2)", 1),
    ]
    assert [one.compile for one in rec.ranges if one.kind == "region"] == ["0/0", "0/0 (2)"]


@pytest.mark.parametrize(
    ("begins_ms", "ready_ms", "owner"),
    [
        (1.4, 31, "first"),  # Dynamo was reset behind the call, and the other one's compile began at once
        (-1, 5, "first"),  # the clocks differ by a little
        (-40, -0.1, "second"),
        (-40, 1, "second"),
    ],
)
def test_a_call_belongs_to_the_compile_that_was_done_when_it_began(begins_ms, ready_ms, owner):
    at, log = 5000.0, process.Log()
    for epoch, name, began, ready in ((0, "first", -5000, -4970), (1, "second", begins_ms, ready_ms)):
        row = Compile(0, "0/0", func=name, outcome="graph")
        log.compiles.tries[epoch, "0/0"] = Try("0/0", epoch, row, at + began / 1e3, at + ready / 1e3)
    call = Event("region", "", int(at * 1e9), int(at * 1e9) + 50_000, "main", 0, 0, "0/0")
    assert process._held([call], log)[0].row.func == owner


def test_code_compiled_before_anyone_listened_still_has_its_name(monkeypatch):
    def quiet(x):
        return x.cos()

    heard = process.install()
    torch_names.trace_logger().removeHandler(heard)
    monkeypatch.setattr(process, "_log", None)
    run = torch.compile(quiet, backend="eager")
    run(torch.ones(2))
    with record() as rec:
        run(torch.ones(2))
    assert [(row.func, row.runs, row.during) for row in rec.compiles] == [("quiet", 1, False)]
    assert "before oddrank listened" in rec.notes[0]
    torch_names.trace_logger().removeHandler(process.install())
    monkeypatch.undo()
    process.install()  # the one that listened before comes back


def said(log: process.Log, frame: int, payload: str | None = None, **what) -> None:
    """An entry of torch's trace."""
    entry = logging.LogRecord("torch.__trace", logging.DEBUG, "", 0, "", (), None)
    entry.metadata = {"frame_id": frame, "frame_compile_id": 0, "attempt": 0, **what}
    entry.payload = payload
    log.handle(entry)


def compiled(log: process.Log, frame: int, graph: str = "x = a + b") -> None:
    """What a compile says, from start to end."""
    said(log, frame, dynamo_start={"stack": [{"name": "f", "line": 3, "filename": 0}]})
    said(log, frame, graph, dynamo_output_graph={"sizes": {}})
    said(log, frame, compilation_metrics={"has_guarded_code": True, "graph_op_count": 4})


def test_listeners_hear_of_a_caches_answer_before_the_compile_ends():
    """A rank that hangs in its compile has said what its caches answered."""
    log, heard = process.Log(), []
    log.compiles.listeners.append(lambda one: heard.append((one.row.cached, one.finished)))
    said(log, 0, dynamo_start={"stack": [{"name": "f", "line": 3, "filename": 0}]})
    for name in ("aotautograd_cache_miss", "fx_graph_cache_miss", "fx_graph_cache_hit"):
        said(log, 0, artifact={"name": name})
    assert heard == [(None, False), (False, False), (True, False)]


def test_a_long_life_is_bounded_and_an_entry_that_cannot_be_read_breaks_nothing(monkeypatch):
    monkeypatch.setattr(compiles, "MOST_TEXT", 1000)
    monkeypatch.setattr(compiles, "MOST_COMPILES", 12)
    log = process.Log()
    for frame in range(15):
        compiled(log, frame, "y" * 300)
    said(log, 11, optimize_ddp_split_child=3)
    assert log.compiles.left_out or log.error
    kept = [bool(one.texts) for one in log.compiles.tries.values()]
    assert kept == [False] * 9 + [True] * 3
    assert all(one.row.operators == 4 for one in log.compiles.tries.values())


def test_calling_compiled_code_writes_no_entry(monkeypatch):
    run = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
    run(torch.ones(3))
    heard = []
    monkeypatch.setattr(process.install(), "emit", heard.append)
    for _ in range(5):
        run(torch.ones(3))
    assert heard == []

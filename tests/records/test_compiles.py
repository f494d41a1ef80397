"""What a record says about compiling: recompiles, seconds, stages, ids that Dynamo uses twice."""

from __future__ import annotations

import inspect

import pytest
import torch

import labkit
from labkit import torch_compat
from labkit.records import compile_log
from labkit.records.names import Names
from labkit.records.recorded_compiles import match_compiles
from labkit.trace import Event


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
    with labkit.record() as rec:
        run(torch.ones(4), True)
        run(torch.ones(5), True)
        run(torch.ones(5), False)
    assert rec.recompiles["compile_id"].tolist() == ["0/1", "0/2"]
    shape, flag = rec.recompiles.to_dict("records")
    assert shape["reason"].startswith("tensor 'x' size mismatch at index 0. expected 4, actual 5")
    assert shape["place"] == f"test_compiles.py:{line_of(branch, 'def branch')} (branch)"
    assert flag["reason"] == "flag == True"
    assert flag["place"] == f"test_compiles.py:{line_of(branch, 'if flag')} (branch)"
    assert rec.counts.loc[0, "recompiles"] == 2
    with labkit.record() as warm:
        run(torch.ones(5), False)
    assert warm.recompiles.empty and warm.counts.loc[0, "recompiles"] == 0


def test_a_frame_compiled_too_often_is_given_up_by_name():
    def sized(x):
        return x + 1

    run = torch.compile(sized, backend="eager")
    with torch_compat.require("torch._dynamo.config").patch(recompile_limit=2):
        with labkit.record() as rec:
            for n in range(1, 5):
                run(torch.ones([2] * n))
    row = rec.breaks.iloc[-1]
    assert (row["kind"], row["name"]) == ("skip", "sized") and "recompile limit" in row["reason"]


@pytest.mark.slow
def test_compiles_give_seconds_and_say_whether_the_cache_was_hit(model):
    m = model("functional", backend="inductor")
    m.run(m.x)
    torch_compat.dynamo_reset()
    m = model("functional", backend="inductor")
    with labkit.record() as rec:
        m.run(m.x)
    row = rec.compiles.iloc[0]
    assert row["cached"] is True and row["during"]
    assert row["seconds"] > 0 and row["dynamo_s"] + row["backend_s"] == pytest.approx(row["seconds"])
    assert set(rec.breakdown["kind"]) >= {"compile", "compute", "collective"}
    plain = torch.compile(lambda x: x + 1, backend="eager")
    with labkit.record() as rec:
        plain(torch.ones(2))
    assert rec.compiles.iloc[0]["cached"] is None


@pytest.mark.slow
def test_stages_are_kept_on_request(model):
    m = model("functional", backend="inductor")
    with labkit.record(stages=True) as rec:
        m.run(m.x)
    assert "_c10d_functional.all_reduce" in rec.graphs.loc[0, "aot_code"]
    assert "def call(" in rec.graphs.loc[0, "inductor_code"]
    with labkit.record() as rec:
        m.run(m.x)
    assert "aot_code" not in rec.graphs


def test_a_reused_compile_id_names_the_code_that_ran():
    def first(x):
        return x + 1

    def second(x):
        return x * 2

    a = torch.compile(first, backend="eager")
    a(torch.ones(2))
    with labkit.record() as rec:
        with rec.forward():
            a(torch.ones(2))
        torch_compat.dynamo_reset()
        b = torch.compile(second, backend="eager")
        with rec.forward():
            b(torch.ones(2))
    regions = rec.events[rec.events["kind"] == "region"]
    assert regions[["name", "compile_id"]].values.tolist() == [["first", "0/0"], ["second", "0/0 (2)"]]
    assert rec.graphs["calls"].tolist() == [1, 1]


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
    at = 5000.0
    watched = compile_log.CompileLog()
    for epoch, name, began, ready in ((0, "first", -5000, -4970), (1, "second", begins_ms, ready_ms)):
        watched.compiles[epoch, "0/0"] = compile_log.Compile(
            epoch, "0/0", at + began / 1e3, at + ready / 1e3, finished=True, co_name=name, has_code=True
        )
    call = Event("region", "", int(at * 1e9), int(at * 1e9) + 50_000, "main", 0, 0, "0/0")
    assert match_compiles([call], watched, at, Names()).of(call).name == owner


def test_code_compiled_before_anyone_listened_still_has_its_name(monkeypatch):
    def quiet(x):
        return x.cos()

    torch_compat.trace_logger().removeHandler(compile_log.install())
    monkeypatch.setattr(compile_log, "_log", None)
    run = torch.compile(quiet, backend="eager")
    run(torch.ones(2))
    with labkit.record() as rec:
        run(torch.ones(2))
    assert rec.graphs[["name", "calls"]].values.tolist() == [["quiet", 1]]
    assert "before labkit listened" in rec.notes[0] and "note:" in repr(rec)
    torch_compat.trace_logger().removeHandler(
        compile_log.install()
    )  # the one that listened before comes back

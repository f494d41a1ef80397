"""Every stage of a compiled frame: what is there, what is missing and why, and that it travels."""

from __future__ import annotations

import ast
import dataclasses
import pickle
import sys

import pytest
import torch

import labkit
from labkit import records, torch_compat
from labkit.records import decompiled, guards


def broken(x, w):
    y = (x @ w).relu()
    print(end="")
    return (y * 2).sum()


def whole(x, w):
    return ((x @ w).relu() * 2).sum()


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.strip() == text)


@pytest.fixture
def inputs():
    return torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)


@pytest.fixture
def grad():
    with torch.enable_grad():
        yield


def test_a_function_with_a_break_has_two_frames_with_every_stage(inputs, grad):
    frames = records.inspect(broken, *inputs, fresh=True)
    first, second = frames
    assert len(frames.graphs) == 2 and [f.ops for f in frames] == [2, 2]
    assert first.stages == tuple(s for s in records.STAGES if s != "inductor_backward")
    assert "print" in first.stage("decompiled") and "__compiled_fn_" in first.stage("decompiled")
    assert ".mm." in first.stage("aot_forward") and "tangents" in first.stage("aot_backward")
    assert "def call(" in first.stage("inductor") and "import torch" not in first.stage("inductor")
    assert "import torch" in first.stage("inductor", whole=True)
    at = line_of('print(end="")')
    assert second.resumed and second.name == f"broken, resumed at test_frames.py:{at}"


def test_the_source_marks_where_a_break_leaves_and_where_the_rest_goes_on(inputs):
    first, second = records.inspect(torch.compile(broken, backend="eager"), *inputs)
    at = line_of('print(end="")')
    assert f"{at:5} ✗     print(end" in first.stage("source")
    assert f"{at:5} ▶     print(end" in second.stage("source")
    assert first.breaks.line == at and second.breaks is None


def test_frames_travel_as_text_alone(inputs):
    frames = records.inspect(torch.compile(whole, backend="aot_eager"), *inputs)
    data = pickle.dumps(frames)
    assert b"torch" not in data.split(b"labkit.records.frame")[0] and len(data) < 100_000
    again = pickle.loads(data)
    assert again[0] == frames[0] and repr(again) == repr(frames)
    assert __file__.rpartition("/")[0] not in data.decode("latin1")


@pytest.mark.parametrize(
    "backend, stage, why",
    [
        ("eager", "aot_forward", "without AOTAutograd"),
        ("aot_eager", "inductor", "not Inductor"),
        ("aot_eager", "aot_joint", "needs a gradient"),
    ],
)
def test_a_missing_stage_says_why(inputs, backend, stage, why):
    one = records.inspect(torch.compile(whole, backend=backend), *inputs)[0]
    assert why in one.missing[stage]
    with pytest.raises(ValueError, match=why):
        one.stage(stage)
    with pytest.raises(ValueError, match="is no stage: there are source, "):
        one.stage("fx")
    with pytest.raises(ValueError, match="is no graph"):
        one.nodes("guards")


def test_code_compiled_before_stages_were_kept_says_so_and_fresh_has_them(inputs):
    run = torch.compile(whole, backend="aot_eager")
    run(*inputs)
    one = records.inspect(run, *inputs)[0]
    assert not one.during and one.calls == 1 and one.stages == ("source", "dynamo")
    assert all(
        "fresh=True" in one.missing[stage] for stage in ("guards", "aot_forward", "bytecode", "decompiled")
    )
    assert "aot_forward" in records.inspect(run, *inputs, fresh=True)[0].stages


def test_a_recompile_is_another_frame_of_the_same_function():
    def sized(x):
        return x * 2

    run = torch.compile(sized, backend="eager")
    with labkit.record(stages=True) as rec:
        run(torch.ones(3))
        run(torch.ones(4))
    assert [f.id for f in rec.frames] == ["0/0", "0/1"]
    assert "size=" not in rec.frames[0].stage("guards") and "[3]" in rec.frames[0].stage("guards")
    assert "s" in rec.frames[1].nodes()[0].shape


def test_a_guard_on_a_size_belongs_to_its_input_though_it_stands_at_the_root():
    root = "+- RootGuardManager"
    size = "+- LAMBDA_GUARD: 2 <= L['x'].size()[0]  # y = x.sum(0)  # model.py:3 in f"
    state = "| +- GLOBAL_STATE: ___check_global_state()"
    text = guards.group("\n".join([root, state, size]))
    assert text.splitlines()[:2] == ["L['x']", "    LAMBDA_GUARD: 2 <= L['x'].size()[0]    # y = x.sum(0)"]
    assert "torch's own state (1)" in text


def test_guards_are_grouped_by_what_they_protect_and_the_frequent_ones_folded():
    def scaled(x, n):
        return x * n

    one = records.inspect(torch.compile(scaled, backend="eager"), torch.ones(3), 2)[0]
    text, full = one.stage("guards"), one.stage("guards", whole=True)
    assert "L['n']\n    EQUALS_MATCH: L['n'] == 2" in text
    assert "TENSOR_MATCH: float32 [3], stride [1]" in text
    # the guard on marks of dynamic sizes; torch 2.12 and before look for the attribute
    rare = "NO_HASATTR" if torch.__version__ < "2.13" else "DIMENSION_DYNAMIC_MARKING"
    assert rare not in text and rare in full
    assert {g.protects for g in one.guards} >= {"L['x']", "L['n']", "torch's own state"}


def test_a_break_carries_its_registry_entry(inputs):
    one = records.inspect(torch.compile(broken, backend="eager"), *inputs)[0].breaks
    assert one.id.startswith("GB") and "print" in one.explanation and one.hints
    assert records.kind_of_break(one.id).kind == one.kind
    assert records.kind_of_break("GB9999") is None


def test_a_record_without_stages_says_so_and_merging_keeps_both_ranks(inputs):
    run = torch.compile(whole, backend="eager")
    with labkit.record() as rec:
        run(*inputs)
    with pytest.raises(ValueError, match="stages=True"):
        _ = rec.frames
    with labkit.record(stages=True) as rec:
        run(*inputs)
    other = pickle.loads(pickle.dumps(rec))
    for frame in other.tables.values():
        frame["rank"] = 1
    other._frames = records.Frames(dataclasses.replace(f, rank=1) for f in rec.frames)
    both = records.merge([rec, other]).frames
    assert both.ranks == [0, 1] and both.of_rank(1)[0].name == "whole"
    with pytest.raises(ValueError, match="no frames of rank 3"):
        both.of_rank(3)
    with pytest.raises(ValueError, match="takes records or Frames, one a rank, and got a Frames"):
        records.merge([rec, rec.frames])


def test_depyf_that_fails_leaves_the_bytecode_and_says_so(inputs, monkeypatch):
    import depyf

    def fails(code):
        raise KeyError("no such instruction")

    monkeypatch.setattr(depyf, "decompile", fails)
    one = records.inspect(torch.compile(whole, backend="eager"), *inputs)[0]
    text = one.stage("decompiled")
    assert (
        text.startswith("# depyf cannot decompile it (KeyError: 'no such instruction')")
        and "RETURN_VALUE" in text
    )
    monkeypatch.setitem(sys.modules, "depyf", None)
    torch_compat.dynamo_reset()
    one = records.inspect(torch.compile(whole, backend="eager"), *inputs)[0]
    assert one.stage("decompiled").startswith("# depyf is not installed")


def test_what_is_decompiled_is_python_without_bookkeeping(inputs):
    one = records.inspect(torch.compile(broken, backend="eager"), *inputs)[0]
    text = one.stage("decompiled")
    ast.parse(text)
    assert "record_pregraph" not in text and "__builtins_dict__" not in text and "extend([])" not in text


def test_profiler_marks_that_ask_for_a_profiler_first_are_folded_away():
    source = """def f(x):
    tmp_3 = __import_torch_dot_autograd_dot_profiler._is_profiler_enabled
    tmp_2 = __import_torch_dot__dynamo_dot_utils
    tmp_1 = None
    if tmp_3:
        tmp_1 = tmp_2.record_pregraph_bytecode_enter()
    if not tmp_1 is None:
        tmp_2.record_pregraph_bytecode_exit(tmp_1)
        y = __compiled_fn_2(x)
    else:
        y = __compiled_fn_2(x)
    if tmp_4:
        return y
    return (y, x)"""
    text = decompiled.simplify(source)
    assert text.count("__compiled_fn_2(") == 1 and "profiler" not in text and "tmp_1" not in text
    assert "if tmp_4:" in text  # a condition that chooses stays


def test_html_folds_every_stage_and_escapes(inputs):
    frames = records.inspect(torch.compile(broken, backend="eager"), *inputs)
    page = frames._repr_html_()
    assert page.count("<details>") == len(frames) + sum(len(f.stages) for f in frames)
    assert "<lambda>" not in page and "&gt;" in page

"""Frames: every stage of a compile is there, or says why not; what `inspect` takes, and what it says of the rest."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys

import pytest
import torch
from oddrank.record import record
from oddrank.stages import GRAPHS, STAGES, inspect
from torch import nn


def broken(x, w):
    y = (x @ w).relu()
    print(end="")  # leaves here
    return (y * 2).sum()


def whole(x, w):
    return ((x @ w).relu() * 2).sum()


def line_of(text):
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.strip().endswith(text))


class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.scaled(x) + 1

    def scaled(self, x):
        return x * self.weight


def test_a_function_with_a_break_has_two_frames_with_every_stage():
    frames = inspect(broken, torch.ones(4, 4), torch.ones(4, 4, requires_grad=True), fresh=True)
    first, second = frames
    assert [frame.compile.operators for frame in frames.graphs] == [2, 2]
    assert list(first.texts) == [stage for stage in STAGES if stage != "inductor_backward"]
    assert "first runs" in first.missing["inductor_backward"]
    assert [node.short for node in first.nodes("aot_forward")][2:4] == ["mm", "relu"]
    assert any(node.name.startswith("tangents") for node in first.nodes("aot_backward"))
    code = first.stage("inductor")
    assert "extern_kernels.mm(" in code and "import " not in code and "benchmark" not in code
    assert "import torch" in first.texts["inductor"]
    assert "RETURN_VALUE" in first.stage("bytecode_after") and "__compiled_fn_" in first.stage("decompiled")
    at = line_of("# leaves here")
    (found,) = frames.breaks
    assert (found.line, second.compile.resume) == (at, at) and "print" in found.name and found.hints
    assert "(2 frames, 2 graphs, 1 break)" in repr(frames)
    assert f"1/0 broken, resumed at test_frames.py:{at}: 2 operations, called 1 time" in repr(frames)


def test_frames_are_read_where_there_is_no_torch_and_their_texts_name_no_folder(look):
    (one,) = frames = look(whole)
    assert not any(__file__.rpartition("/")[0] in text for text in one.texts.values())
    script = """if True:
        import pickle, sys
        sys.modules["torch"] = None
        from oddrank.stages import diff
        one, = pickle.load(sys.stdin.buffer)
        print(one.title, diff(one, one, "aot_forward").said, [n.short for n in one.nodes() if n.kind == "op"])"""
    said = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(frames), capture_output=True, check=True
    ).stdout.decode()
    assert (
        "0/0 whole at test_frames.py:" in said and "agree on all 10 lines ['@', 'relu', '*', 'sum']" in said
    )


@pytest.mark.parametrize(
    "backend, stage, why",
    [
        ("eager", "aot_forward", "without AOTAutograd"),
        ("aot_eager", "inductor", "not Inductor"),
        ("aot_eager", "aot_joint", "needs a gradient"),
    ],
)
def test_a_missing_stage_says_why(look, backend, stage, why):
    (one,) = look(whole, torch.ones(4, 4), torch.ones(4, 4), backend=backend)
    with pytest.raises(ValueError, match=why):
        one.stage(stage)
    assert why in str(one)
    with pytest.raises(ValueError, match="is no stage: there are bytecode, "):
        one.stage("fx")
    with pytest.raises(ValueError, match="is no graph"):
        one.nodes("guards")


def test_code_compiled_before_stages_were_kept_says_so_and_fresh_has_them():
    run, x = torch.compile(whole, backend="aot_eager"), torch.ones(4, 4)
    with record() as rec:
        run(x, x)
    with pytest.raises(ValueError, match="stages=True"):
        _ = rec.frames
    (one,) = inspect(run, x, x)
    assert "called 1 time, compiled earlier" in one.said and list(one.texts) == ["dynamo"]
    assert all("fresh=True" in one.missing[stage] for stage in STAGES if stage not in one.texts)
    (one,) = inspect(run, x, x, fresh=True)
    assert "aot_forward" in one.texts and "earlier" not in one.said


def test_a_compile_cache_hit_says_so_and_fresh_asks_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    run, x = torch.compile(whole), torch.ones(4, 4)
    run(x, x)
    torch._dynamo.reset()
    (hit,) = inspect(run, x, x)
    assert hit.compile.cached and "was a cache hit" in hit.missing["aot_joint"]
    (anew,) = inspect(run, x, x, fresh=True)
    assert not anew.compile.cached and "needs a gradient" in anew.missing["aot_joint"]


def test_there_are_as_many_graphs_as_explain_counts_and_a_recompile_is_another_frame():
    def sized(x):
        x = x * 2
        torch._dynamo.graph_break()
        return x.sin()

    explained = torch._dynamo.explain(sized)(torch.ones(3))
    run = torch.compile(sized, backend="eager")
    torch._dynamo.reset()
    with record(stages=True) as rec:
        run(torch.ones(3))
        run(torch.ones(4))
    ids = [frame.compile.id for frame in rec.frames.graphs]
    assert ids.count("0/0") == ids.count("0/1") == 1 and len(ids) == 2 * explained.graph_count
    assert len(rec.frames.breaks) == 2 * explained.graph_break_count
    again = next(frame for frame in rec.frames if frame.compile.id == "0/1")
    assert again.compile.reasons and any("Sym(" in node.shape for node in again.nodes())
    assert f"called {again.compile.runs} time" in again.said


def test_what_a_depyf_that_fails_leaves(look, monkeypatch):
    depyf = pytest.importorskip("depyf")

    def fails(code):
        raise KeyError("no such instruction")

    monkeypatch.setattr(depyf, "decompile", fails)
    (one,) = look(whole)
    first, rest = one.stage("decompiled").split("\n", 1)
    assert first.startswith("# depyf cannot decompile it (KeyError: 'no such instruction')")
    assert rest == one.stage("bytecode_after")


# --- what inspect takes ---


@pytest.mark.parametrize(
    "fn, name",
    [
        (lambda x: x * 3, "<lambda>"),
        (Scaler(), "Scaler.forward"),
        (Scaler().scaled, "Scaler.scaled"),
        (functools.partial(torch.add, torch.ones(4)), ""),
    ],
)
def test_a_lambda_a_method_a_module_and_a_partial_are_functions_too(look, fn, name):
    (one,) = look(fn, torch.ones(4)).graphs
    assert one.compile.func == name or not name


def add_one(x):
    return x + 1


def generator(x):
    yield x


@pytest.mark.parametrize(
    "fn, said",
    [
        (Scaler, "Scaler is a class"),
        (7, "got a int"),
        ("add_one", "got a str"),
        (generator, "is a generator"),
    ],
)
def test_what_is_no_function_is_refused(fn, said):
    with pytest.raises(ValueError, match=said):
        inspect(fn, torch.ones(4))


hidden = torch.compiler.disable(add_one)


def looping(x):
    for _ in range(2):
        x = hidden(x * 2)
    return x


@pytest.mark.parametrize(
    "fn, said",
    [
        (len, "len is a builtin"),
        (hidden, "add_one is hidden from the compiler"),
        (lambda x: "no tensor is touched", "no graph: nothing that <lambda> did"),
        (torch.compile(looping, backend="eager"), "looping ran as plain Python: Dynamo gave looping up ("),
    ],
)
def test_what_compiles_no_graph_is_said_in_one_sentence(fn, said):
    frames = inspect(fn, torch.ones(4))
    assert not frames.graphs and said in frames.notes[-1] and frames.notes[-1] in repr(frames)
    for one in frames:
        assert (
            one.compile.outcome != "gave-up" or "given up" in one.said and "given up" in one.missing["guards"]
        )


def test_an_error_in_the_function_passes_and_the_next_inspect_works():
    def wrong(x):
        raise RuntimeError("tripped")

    with pytest.raises(RuntimeError, match="tripped"):
        inspect(torch.compile(wrong, backend="eager"), torch.ones(4))
    with record(), pytest.raises(ValueError, match="do not nest"):
        inspect(add_one, torch.ones(4))
    (one,) = inspect(torch.compile(add_one, backend="aot_eager"), torch.ones(4)).graphs
    assert set(GRAPHS) & one.texts.keys() == {"dynamo", "aot_forward"}

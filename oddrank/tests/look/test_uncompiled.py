"""A module that is compiled with others and called by itself: which calls are told, and which are meant so."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from oddrank.look import program_source, uncompiled
from oddrank.look.steps import Options, Steps, watching
from oddrank.record.tables import Compile, Mark, Table, Tables
from torch import nn

BACKEND = "eager"


class Tagger(nn.Module):
    def __init__(self, bare: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


class WithLoss(nn.Module):
    def __init__(self, tagger):
        super().__init__()
        self.tagger = tagger

    def forward(self, x):
        return self.tagger(x).square().mean()


def batches(*sizes: int) -> Iterator[torch.Tensor]:
    yield from (torch.ones(size, 6) for size in sizes)


def train(compiled, tagger) -> None:
    opt = torch.optim.SGD(tagger.parameters(), lr=0.1)
    for x in batches(4, 4, 4):
        compiled(x).backward()
        opt.step()
        opt.zero_grad()


def evaluate(model, *sizes: int) -> None:
    with torch.no_grad():
        for x in batches(*sizes):
            model(x)


def bare():
    tagger = Tagger()
    compiled = torch.compile(WithLoss(tagger), backend=BACKEND)
    train(compiled, tagger)
    evaluate(tagger, 4, 4, 2)
    train(compiled, tagger)
    evaluate(tagger, 4)


def body_alone():
    tagger = Tagger()
    train(torch.compile(WithLoss(tagger), backend=BACKEND), tagger)
    evaluate(tagger.body, 4, 4, 4)


def itself():
    tagger = Tagger()
    tagger.compile(backend=BACKEND)
    train(WithLoss(tagger), tagger)
    evaluate(tagger, 4, 4, 4)


def both():
    tagger = Tagger()
    train(torch.compile(WithLoss(tagger), backend=BACKEND), tagger)
    evaluate(torch.compile(tagger, backend=BACKEND), 4, 4, 4)


def head_alone():
    tagger = Tagger()
    train(torch.compile(WithLoss(tagger), backend=BACKEND), tagger)
    for _ in range(5):
        tagger.head(torch.ones(4, 8))


def before_the_first_compiled_call():
    tagger = Tagger()
    compiled = torch.compile(WithLoss(tagger), backend=BACKEND)
    evaluate(tagger, 4, 4, 4, 4)
    train(compiled, tagger)
    evaluate(tagger, 4)


def sizes_of_all_kinds():
    tagger = Tagger()
    train(torch.compile(WithLoss(tagger), backend=BACKEND), tagger)
    evaluate(tagger, 1, 2, 3, 4, 5)


def on_purpose():
    tagger = Tagger()
    train(torch.compile(WithLoss(tagger), backend=BACKEND), tagger)
    torch.compiler.disable(evaluate)(tagger, 4, 4, 4)
    with torch.compiler.set_stance("force_eager"):
        evaluate(tagger, 4, 4, 4)


def blocks_of_a_model():
    tagger = Tagger()
    tagger.body = torch.compile(tagger.body, backend=BACKEND)
    train(torch.compile(WithLoss(tagger), backend=BACKEND), tagger)
    evaluate(tagger, 4, 4, 4)


def between_regions():
    class Broken(WithLoss):
        def forward(self, x):
            torch._dynamo.graph_break()
            return self.tagger(x).square().mean()

    tagger = Tagger()
    train(torch.compile(Broken(tagger), backend=BACKEND), tagger)


@pytest.fixture(autouse=True)
def leave_no_module() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    gc.collect()  # other tests look at all modules that are alive


def told(program: Callable[[], None]) -> str:
    """What is said of a program on one rank."""
    torch._dynamo.reset()
    steps = Steps(Options())
    with watching(steps):
        program()
        table = steps.around.table().assign(rank=0)
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    assert not hooks, "torch is as it was"
    return "\n".join(f"{one.place}: {one.said}" for one in uncompiled.bypassed(table))


def test_a_module_that_runs_in_eager_is_told_with_its_calls():
    said = told(bare)
    assert "(evaluate): Tagger ran in eager 4 times: it is" in said
    assert "compiled within WithLoss.forward at test_uncompiled.py:" in said and said.count("\n") == 0
    assert "Sequential ran in eager 3 times" in told(body_alone)


@pytest.mark.parametrize(
    "program",
    [
        itself,
        both,
        head_alone,
        before_the_first_compiled_call,
        sizes_of_all_kinds,
        on_purpose,
        blocks_of_a_model,
    ]
    + [between_regions],
)
def test_what_is_meant_or_compiled_is_not_told(program):
    assert told(program) == ""


@pytest.mark.parametrize("calls", [4, 2])
def test_the_source_says_where_a_compiled_forward_ran_in_eager_too(tmp_path, calls):
    (tmp_path / "net.py").write_text("class Net:\n    def forward(self, x):\n        return x.sin()\n")
    file = str(tmp_path / "net.py")
    graph = Compile(0, "0/0", file, 2, "Net.forward", outcome="graph", operators=1)
    sine = Mark(0, "0/0", file, 3, "Net.forward", "op", "dynamo", ".sin", "f32[4]")
    kept = pd.DataFrame(
        [(file, program_source.WHOLE, Path(file).read_text())], columns=["file", "line", "text"]
    )
    row = {
        "rank": 0,
        "name": "Net",
        "made": "Task.forward at a.py:9",
        "compiled": 8,
        "place": "a.py:7 (check)",
    }
    around = pd.DataFrame([row | {"calls": calls, "shapes": 1, "file": "net.py", "line": 2}])
    tables = Tables(Table(Compile, [graph]), Table(Mark, [sine]))
    (section,) = program_source.annotated(tables, kept, around).listing.sections
    said = [f"{note.kind}: {note.words}" for note in section.rows[0].notes]
    assert said == ["def: 4 times from a.py:7 (check), around what is compiled"] * (calls == 4)
    assert section.rows[1].cells[0].graphs == ("A",)

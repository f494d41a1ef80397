"""Forwards that run in Python beside what is compiled: which are counted, how often, and how the source shows them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from oddrank.look import program_source
from oddrank.look.forwards import TYPES, Forwards
from oddrank.look.steps import Options, Steps, watching
from oddrank.record.tables import Compile, Mark, Table, Tables
from torch import nn

BACKEND = "eager"
OPTIONS = Options()


class Norm(nn.Module):
    def forward(self, x):
        return x / (1 + x.abs())


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.linear = Norm(), nn.Linear(size, size)

    def forward(self, x):
        return x + self.linear(self.norm(x))


class Net(nn.Module):
    def __init__(self, size=6, layers=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(layers))
        self.norm = Norm()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def train(net, call=None, steps=6, passes=1, between=lambda: None) -> None:
    call = net if call is None else call
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        for _ in range(passes):
            call(torch.ones(2, 6)).square().mean().backward()
        opt.step()
        opt.zero_grad()
        between()


def one_block():
    net = Net()
    net.blocks[1].compile(backend=BACKEND)
    train(net)


def one_block_wrapped_in_accumulated_steps():
    net = Net(layers=3)
    net.blocks[1] = torch.compile(net.blocks[1], backend=BACKEND)
    train(net, passes=2)


def validated():
    net = Net()
    net.blocks[0].compile(backend=BACKEND)

    @torch.no_grad()
    def validate():
        net(torch.ones(2, 6))

    train(net, between=validate)


def inference():
    net = Net()
    net.blocks[0].compile(backend=BACKEND)
    with torch.no_grad():
        for _ in range(3):
            net(torch.ones(2, 6))


def whole():
    net = Net()
    train(net, torch.compile(net, backend=BACKEND))


def in_place():
    net = Net()
    net.compile(backend=BACKEND)
    train(net)


def own_forward():
    net = Net()
    net.forward = torch.compile(net.forward, backend=BACKEND)
    train(net)


def forward_of_the_class():
    class Fast(Net):
        forward = torch.compile(Net.forward, backend=BACKEND)

    train(Fast())


def with_a_break():
    class Broken(Net):
        def forward(self, x):
            torch._dynamo.graph_break()
            return super().forward(x)

    net = Broken()
    train(net, torch.compile(net, backend=BACKEND))


def only_validated():
    net = Net()
    compiled = torch.compile(net, backend=BACKEND)

    @torch.no_grad()
    def validate():
        net(torch.ones(2, 6))

    train(net, compiled, between=validate)


@pytest.fixture(autouse=True)
def leave_no_module() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    gc.collect()  # other tests look at all modules that are alive


def told(program: Callable[[], None], options: Options = OPTIONS) -> dict[str, str]:
    """By function, its calls and the steps that have them."""
    torch._dynamo.reset()
    steps = Steps(options)
    forwards = Forwards(steps)
    with watching(steps):
        program()
        table = forwards.table()
    assert not torch.nn.modules.module._global_forward_pre_hooks, "torch is as it was"
    assert set(table["file"]) <= {__file__}, "torch's own modules are nobody's finding"
    return {row.func: f"{row.calls} in {row.steps}" for row in table.itertuples()}


@pytest.mark.parametrize(
    ("program", "options", "expected"),
    [
        (one_block, OPTIONS, {"Net.forward": "3 in 3", "Block.forward": "9 in 3", "Norm.forward": "12 in 3"}),
        (one_block, Options(skip=0, steps=2),
         {"Net.forward": "1 in 1", "Block.forward": "3 in 1", "Norm.forward": "4 in 1"}),
        (one_block_wrapped_in_accumulated_steps, OPTIONS,
         {"Net.forward": "6 in 3", "Block.forward": "12 in 3", "Norm.forward": "18 in 3"}),
        (validated, OPTIONS, {"Net.forward": "3 in 3", "Block.forward": "9 in 3", "Norm.forward": "12 in 3"}),
        # the first call is under way when the first compiled one begins
        (inference, OPTIONS, {"Net.forward": "3 in 0", "Block.forward": "9 in 0", "Norm.forward": "12 in 0"}),
    ],
)  # fmt: skip
def test_forwards_beside_what_is_compiled_are_counted_by_step(program, options, expected):
    assert told(program, options) == expected


@pytest.mark.parametrize(
    "program", [whole, in_place, own_forward, forward_of_the_class, with_a_break, only_validated]
)
def test_what_is_compiled_is_none_of_them(program):
    assert told(program) == {}


TEXT = """\
class Block:
    def forward(self, x):
        x = x.sin()
        return x


class Net:
    def forward(self, x):
        return self.block(x)
"""


@pytest.mark.parametrize("ranks", [[0, 1], [1]])
def test_the_source_hatches_them_beside_the_graphs(tmp_path, ranks):
    (tmp_path / "net.py").write_text(TEXT)
    file = str(tmp_path / "net.py")
    tables = Tables(Table(Compile, []), Table(Mark, []))
    for rank in (0, 1):
        tables.compiles.append(
            Compile(rank, "0/0", file, 2, "Block.forward", outcome="graph", operators=1, runs=1)
        )
        tables.marks.append(Mark(rank, "0/0", file, 3, "Block.forward", "op", "dynamo", ".sin", "f32[4]"))
        tables.profiled[rank] = 1
    rows = [
        (rank, file, line, func, calls, 3)
        for rank in ranks
        for line, func, calls in ((2, "Block.forward", 9), (8, "Net.forward", 3))
    ]
    forwards = pd.DataFrame(rows, columns=list(TYPES))
    kept = pd.DataFrame(
        [(file, program_source.WHOLE, Path(file).read_text())], columns=["file", "line", "text"]
    )
    drawn = program_source.annotated(tables, kept, None, forwards)
    block, net = drawn.listing.sections
    who = "" if len(ranks) == 2 else "rank 1"
    at = -1  # the lane that has them
    for section, often in ((block, "3× a step"), (net, "1× a step")):
        (note,) = section.rows[0].notes
        assert (note.kind, note.runs, note.who) == ("eager", often, who)
        assert section.beside and not section.eager and section.differs == (len(ranks) == 1)
    assert [row.cells[at].also for row in block.rows] == [False, True, True]
    assert [row.cells[at].eager for row in block.rows] == [True, False, False]
    assert block.rows[1].cells[at].graphs == ("A",)
    assert all(row.cells[at].eager for row in net.rows)
    assert len(ranks) == 2 or not any(row.cells[0].eager or row.cells[0].also for row in net.rows)
    page, text = drawn.page(), drawn.text()
    assert page.count(' also"') == 2 and "runs in eager, 3× a step" in page
    assert "▨ runs in eager, 1× a step" in text.replace("[rank 1] ", "") and "┃A×1┊" in text

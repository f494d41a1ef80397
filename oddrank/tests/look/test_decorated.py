"""Classes whose forwards share the code of a decorator: each compile of it has the name of its class, everywhere."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from oddrank.look import breaks, decorated
from oddrank.record import install
from oddrank.source import AnnotatedSource
from oddrank.source.builder import listing
from torch import nn


def checked(fn):
    @functools.wraps(fn)
    def wrapper(self, *args):
        found = fn(self, *args)
        if found.requires_grad:
            torch._dynamo.graph_break()
        return found + 1

    return wrapper


def plain(fn):
    @functools.wraps(fn)
    def forwarded(*args, **kwargs):
        return fn(*args, **kwargs)

    return forwarded


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)

    @checked
    def forward(self, x):
        return self.linear(x)


class Down(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    @checked
    def forward(self, x):
        return self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Up(), Down()

    def forward(self, x):
        return self.down(self.up(x)).sum()


class Sine(nn.Module):
    @plain
    def forward(self, x):
        return x.sin()


class Cosine(nn.Module):
    @plain
    def forward(self, x):
        return x.cos()


def broken():
    call = torch.compile(Net(), backend="eager")
    for size in (2, 3):
        call(torch.ones(size, 4)).backward()


def each_alone():
    for kind in (Sine, Cosine, Sine):
        torch.compile(kind(), backend="eager")(torch.ones(3))


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()  # other tests look at all modules that are alive


def compiled(program: Callable[[], None]):
    """The tables of what a program compiles."""
    log = install().compiles
    with decorated.noting():
        before = set(log.tries)
        program()
        return log.tables(log.chosen(lambda one: (one.epoch, one.id) not in before))


def test_each_compile_of_a_decorator_has_the_name_of_its_class():
    tables = compiled(broken)
    names = [row.name.partition(":")[0] for row in tables.compiles if row.owner]
    rest = "resumed at test_decorated.py"
    assert names[:4] == ["Up.forward", f"Up.forward, {rest}", "Down.forward", f"Down.forward, {rest}"]
    assert {row.func.rpartition(".")[2] for row in tables.compiles if row.owner} == {"wrapper"}
    assert not any(row.owner for row in tables.compiles if row.func == "Net.forward")
    alone = compiled(each_alone)
    assert {row.name for row in alone.compiles} == {"Sine.forward", "Cosine.forward"}


def test_a_recompile_is_compared_with_the_code_of_its_class():
    again = {one.name: one.reason for one in breaks.again_of(compiled(broken)) if "resumed" not in one.name}
    assert again["wrapper"] == f"{breaks.DECORATES} Down.forward"
    for name in ("Up.forward", "Down.forward"):
        assert "size" in again[name] and "__code__" not in again[name]


def test_the_source_shows_the_decorator_with_its_graphs_and_what_it_decorates():
    made = listing(compiled(broken))
    (section,) = [one for one in made.sections if one.name.endswith("wrapper")]
    assert section.owners == ["Up.forward", "Down.forward"] and section.first > 0
    assert any(cell.graphs for row in section.rows for cell in row.cells)
    assert len([one for one in made.sections if one.name == "Up.forward"]) == 1
    drawn = AnnotatedSource(made)
    for text in (drawn.text(), drawn.page()):
        assert "decorates Up.forward, Down.forward" in text

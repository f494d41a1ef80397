"""inspect on code we did not write, and on what is no code at all: a useful answer or one clear sentence."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from torch import nn

import labkit
from course.reading.drawing import draw_graph
from labkit import records


def compiled(fn):
    return torch.compile(fn, backend="aot_eager")


def add_one(x):
    return x + 1


class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.scaled(x) + 1

    def scaled(self, x):
        return x * self.weight


def test_a_function_never_compiled_is_compiled_here():
    frames = records.inspect(add_one, torch.ones(4))
    assert frames[0].name == "add_one" and "inductor" in frames[0].stages


def test_a_lambda_a_method_a_module_and_a_partial_are_functions_too():
    scaler = Scaler()
    for fn, name in [
        (lambda x: x * 3, "<lambda>"),
        (scaler.scaled, "Scaler.scaled"),
        (scaler, "Scaler.forward"),
    ]:
        frames = records.inspect(compiled(fn), torch.ones(4))
        assert len(frames.graphs) == 1, name
        assert frames.graphs[0].name == name and "aot_forward" in frames.graphs[0].stages
    frames = records.inspect(compiled(functools.partial(torch.add, torch.ones(4))), torch.ones(4))
    assert len(frames.graphs) == 1


@pytest.mark.parametrize(
    "fn, said",
    [
        (len, r"len|nothing|graph"),
        (torch.compiler.disable(add_one), "hidden from the compiler"),
        (lambda x: "no tensor is touched", "no graph"),
    ],
)
def test_what_compiles_nothing_is_said_in_one_sentence(fn, said):
    frames = records.inspect(fn, torch.ones(4))
    assert not frames.graphs and len(frames.notes) == 1
    assert said in frames.notes[0] or any(word in frames.notes[0] for word in said.split("|"))
    assert frames.notes[0] in repr(frames) and "\n" not in frames.notes[0]


def test_a_builtin_operator_of_torch_gives_a_graph_or_a_sentence():
    frames = records.inspect(torch.sin, torch.ones(4))
    assert frames.graphs or frames.notes


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
        records.inspect(fn, torch.ones(4))


def test_a_frame_given_up_says_why():
    hidden = torch.compiler.disable(add_one)

    def looping(x):
        for _ in range(2):
            x = hidden(x * 2)
        return x

    frames = records.inspect(compiled(looping), torch.ones(4))
    assert not frames.graphs and "ran as plain Python: Dynamo gave looping up" in frames.notes[0]
    assert "given up" in repr(frames) and frames[0].missing["aot_forward"].startswith(
        "the frame was given up"
    )


def test_an_error_in_the_function_passes_through_and_the_next_inspect_works():
    def wrong(x):
        raise RuntimeError("tripped")

    with pytest.raises(RuntimeError, match="tripped"):
        records.inspect(compiled(wrong), torch.ones(4))
    assert records.inspect(compiled(add_one), torch.ones(4)).graphs


def test_inside_a_record_it_says_that_records_do_not_nest():
    with labkit.record(), pytest.raises(ValueError, match="do not nest"):
        records.inspect(compiled(add_one), torch.ones(4))


def test_indexing_what_is_not_there_says_what_is():
    frames = records.inspect(compiled(add_one), torch.ones(4))
    with pytest.raises(IndexError, match="there is no frame 3: 1 frame"):
        frames[3]


@pytest.mark.slow
def test_a_graph_of_2000_nodes_in_bounded_time():
    def long(x):
        for i in range(1000):
            x = x * 1.0001 + (i % 7)
        return x

    began = time.perf_counter()
    run = torch.compile(long, backend="eager")
    run(torch.ones(4))
    plain = time.perf_counter() - began
    began = time.perf_counter()
    frames = records.inspect(run, torch.ones(4), fresh=True)
    took = time.perf_counter() - began
    one = frames.graphs[0]
    assert one.ops == 2000 and len(one.nodes()) > 2000
    assert took < 3 * plain + 20
    began = time.perf_counter()
    drawn = draw_graph(one)
    assert "2,000 operations" in drawn.summary and drawn.get_figheight() < 30
    assert len(one._repr_html_()) < 400_000
    assert time.perf_counter() - began < 20

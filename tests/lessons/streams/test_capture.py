"""Eager torch code written down: operators, streams, events, memory and collectives, and torch as it was afterwards."""

from __future__ import annotations

import random
import types

import lesson_cells
import pytest
import torch
import torch.distributed as dist

from course.shared.streams import Program, StreamError, ops, simulate
from course.streams.capture import NCCL, capture

NAMES = {  # the figure of the cell is left out
    "capture": lambda *args, **kwargs: Program(),
    "one_stream": types.SimpleNamespace(__name__="one"),
    "two_streams": types.SimpleNamespace(__name__="two"),
    "x": None,
    "simulate": simulate,
    "timeline": lambda *args, **kwargs: None,
}


def x():
    return torch.full((4, 4), 0.25)


def kernels(program):
    return [(op.name, op.stream) for op in program if isinstance(op, ops.Kernel)]


def test_names_are_those_of_the_lines():
    def fn(x):
        here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
        y = torch.relu(x @ x)
        made.record()
        with side:
            made.wait()
            y.add_(1)
        here.wait_stream(side)
        return y

    program = capture(fn, x(), units={"mm": 4})
    assert kernels(program) == [("mm", "default"), ("y = relu", "default"), ("y.add_", "side")]
    assert [str(op) for op in program if isinstance(op, (ops.Record, ops.Wait, ops.WaitStream))] == [
        "record('made', 'default')",
        "wait('made', 'side')",
        "wait_stream('default', 'side')",
    ]
    assert program.operators == ("mm", "relu", "add_") and simulate(program).makespan == 6
    assert torch.equal(program.value, torch.relu(x() @ x()) + 1)


def test_the_spelling_of_cuda_is_the_same():
    def fn(x):
        here, side, made = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Event()
        made.record(here)
        with torch.cuda.stream(side):
            side.wait_event(made)
            y = x + 1
        side.record_event().wait(here)
        y.record_stream(here)
        torch.cuda.synchronize()
        side.synchronize()
        made.synchronize()
        return y

    program = capture(fn, x())
    assert kernels(program) == [("y = add", "side")] and not simulate(program).races
    assert [op.what for op in program if isinstance(op, ops.Synchronize)] == ["device", "stream", "event"]
    assert [op.stream for op in program if isinstance(op, ops.RecordStream)] == ["default"]


def test_views_and_empty_are_no_kernels_and_item_stops_the_host():
    def fn(x):
        y = torch.empty_like(x)
        y.copy_(x.t())
        return y[0].view(2, 2).sum().item()

    program = capture(fn, x())
    assert [name for name, _ in kernels(program)] == ["y.copy_", "sum"]
    assert sum(isinstance(op, ops.Synchronize) for op in program) == 1


def test_memory_goes_back_when_its_last_view_is_gone():
    def fn(x):
        y = x + 1
        row = y[0]
        del y
        z = x + 2
        del row
        w = x + 3
        return z, w

    run = capture(fn, x())
    order = [(type(op).__name__, op.buffer) for op in run if isinstance(op, (ops.Alloc, ops.Free))]
    assert order == [("Alloc", "x"), ("Alloc", "y"), ("Alloc", "z"), ("Free", "y"), ("Alloc", "w")]


def test_a_collective_has_the_queue_that_nccl_gives_it():
    def fn(g, a, async_op):
        work = dist.all_reduce(g, async_op=async_op)
        y = a @ a
        if work:
            work.wait()
        return y + g

    late, line = (
        capture(fn, x(), x(), async_op, units={"mm": 6, "all_reduce": 4}) for async_op in (True, False)
    )
    assert ("all_reduce g", NCCL) in kernels(late) and ("all_reduce g", "default") in kernels(line)
    assert (simulate(late).makespan, simulate(line).makespan) == (7, 11)
    assert not simulate(late).races

    def never_waits(g, a):
        dist.all_reduce(g, async_op=True)
        return g + 1

    (race,) = simulate(capture(never_waits, x(), x())).races
    assert race.cause == "missing wait" and race.buffer == "g"


def test_torch_is_as_it_was_afterwards_also_when_the_function_fails():
    before = (torch.Stream, torch.Event, torch.cuda.stream, dist.all_reduce, torch.Tensor.record_stream)

    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(fails, x())
    after = (torch.Stream, torch.Event, torch.cuda.stream, dist.all_reduce, torch.Tensor.record_stream)
    assert before == after


def written(seed):
    """A program of 25 drawn ops."""
    draw, program = random.Random(seed), Program(streams="a b")
    for i in range(25):
        stream, other = draw.sample(program.streams, 2)
        word = draw.choice(
            ("kernel", "kernel", "record", "wait", "wait_stream", "synchronize", "event", "device")
        )
        if word == "kernel":
            program.kernel(f"k{i}", 1 + draw.randrange(5), on=stream)
        elif word == "wait_stream":
            program.wait_stream(other, on=stream)
        elif word in ("synchronize", "device"):
            program.synchronize(stream if word == "synchronize" else None)
        elif word == "event":
            program.synchronize(event=draw.choice("ef"))
        else:
            getattr(program, word)(draw.choice("ef"), stream)
    return program


def test_the_rules_in_the_lesson_give_the_times_of_the_simulation_in_other_programs():
    times = lesson_cells.run("06_streams_and_events", "streams-rules", **NAMES)["times"]
    for program in map(written, range(40)):
        spans = simulate(program).spans
        kernels = spans[spans["lane"] != "host"]
        assert times(program) == [(k.lane, k.name, k.start, k.end) for k in kernels.itertuples()]


def test_kernels_that_write_into_given_tensors_are_captured():
    def fn(x):
        side = torch.Stream(x.device)
        out = torch.empty_like(x)
        with side:
            torch.mm(x, x, out=out)
        return out + 1

    program = capture(fn, x())
    assert kernels(program) == [("out = mm", "side"), ("add", "default")]
    (race,) = simulate(program).races
    assert (race.cause, race.buffer) == ("missing wait", "out") and torch.equal(program.value, x() @ x() + 1)

    def on_lists(a, b):
        side = torch.Stream(a.device)
        with side:
            torch._foreach_add_([a, b], 1)
        return b + 1

    (race,) = simulate(capture(on_lists, x(), x())).races
    assert race.buffer == "b"


def test_a_query_is_refused_with_the_reason():
    for asks in (lambda x: torch.Event().query(), lambda x: torch.Stream(x.device).query()):
        with pytest.raises(StreamError, match=r"query\(\) asks the GPU"):
            capture(asks, x())


def test_a_helper_without_a_join_races_in_its_caller_and_not_alone():
    def helper(x):
        here, side = torch.accelerator.current_stream(), torch.Stream(x.device)
        y = x @ x
        side.wait_stream(here)
        with side:
            z = y @ y
        return z

    def caller(x):
        z = helper(x)
        w = x + 1
        torch.accelerator.synchronize()
        return w + z

    assert not simulate(capture(helper, x())).races
    assert [race.cause for race in simulate(capture(caller, x())).races] == ["cross-stream free"]

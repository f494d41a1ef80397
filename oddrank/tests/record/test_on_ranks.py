"""Records made on real ranks: they travel back, share a clock, and show where ranks part."""

from __future__ import annotations

import pytest
import torch
from oddrank.record import first_difference, merge


def compile_model(gate: str):
    """On a rank: a compiled model of two blocks, kept for the next call."""
    import sys

    import torch
    import torch.distributed as dist

    def in_place(x):
        dist.all_reduce(x)
        return x

    gates = {"in place": in_place, "disabled": torch.compiler.disable(in_place)}

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return gates[gate](self.linear(x)) + 1

    torch.manual_seed(0)
    torch._dynamo.reset()
    blocks = [torch.compile(Block(), backend="eager") for _ in range(2)]

    def run():
        with torch.no_grad():
            x = torch.ones(4, 8)
            for block in blocks:
                x = block(x)

    run()
    sys.__dict__["labkit_model"] = run


def record_model():
    """On a rank: record what was compiled by an earlier call."""
    import sys

    from oddrank.record import record

    with record() as rec:
        for _ in range(2):
            with rec.forward():
                sys.__dict__["labkit_model"]()
    return rec


@pytest.mark.parametrize(("gate", "expected"), [("disabled", [4, 2, 2, 2, 2]), ("in place", [2, 0, 0, 2, 1])])
def test_ranks_agree_and_code_compiled_by_an_earlier_call_has_its_name(ranks, gate, expected):
    ranks.run(compile_model, gate)
    both = merge(ranks.run(record_model))
    assert both.ranks == [0, 1] and both.label == "gloo · cpu" and both.notes == []
    for row in both.counts:
        assert [row.regions, row.breaks, row.at_collective, row.collectives, row.graphs] == expected
    assert {row.func for row in both.compiles} == {"Block.forward"}
    assert first_difference(both) is None


def test_transfers_have_their_own_thread_and_overlap_on_the_shared_clock(ranks):
    ranks.run(compile_model, "disabled")
    both = merge(ranks.run(record_model))
    moved = sorted((one for one in both.ranges if one.kind == "transfer"), key=lambda one: one.start_us)
    assert all(one.thread.startswith("gloo") for one in moved)
    mine, theirs = ([one for one in moved if one.rank == rank] for rank in (0, 1))
    assert len(mine) == len(theirs) == 4
    # the two ends of one all-reduce cannot miss each other in time
    assert all(a.start_us < b.end_us and b.start_us < a.end_us for a, b in zip(mine, theirs, strict=True))


def test_waiting_for_a_late_rank_is_time_of_the_collective(ranks):
    def late():
        import time

        import torch
        import torch.distributed as dist
        from oddrank.record import record

        x = torch.ones(4)
        dist.barrier()
        with record() as rec:
            if dist.get_rank() == 1:
                time.sleep(0.05)
            dist.all_reduce(x)
        return rec

    both = merge(ranks.run(late))
    early, lately = (one for one in both.ranges if one.kind == "collective")
    assert early.end_us > lately.start_us  # rank 0 cannot be done before rank 1 has come


def test_a_break_on_one_rank_is_where_they_part(ranks):
    def different():
        import torch
        import torch.distributed as dist
        from oddrank.record import record

        torch._dynamo.reset()
        talks = dist.get_rank() == 1

        def step(x):
            y = x.sin()
            if talks:
                torch._dynamo.graph_break()
            return y.cos()

        run = torch.compile(step, backend="eager")
        run(torch.ones(3))
        with record() as rec:
            run(torch.ones(3))
        return rec

    both = merge(ranks.run(different))
    found = first_difference(both)
    assert (found.forward, found.index, found.odd) == (0, 0, [1])
    assert found.steps[0].kind == "region" and found.steps[0].end_us > found.steps[0].start_us
    assert [row.breaks for row in both.counts] == [0, 1]
    (met,) = both.breaks
    assert (met.rank, met.executed) == (1, 1) and "graph_break()" in met.reason and "(step)" in met.place


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_on_one_rank_is_no_difference(ranks, hours):
    def jumping(hours):
        import time

        import torch
        import torch.distributed as dist
        from oddrank.record import record

        def step(x):
            return x.sin().cos()

        torch._dynamo.reset()
        run = torch.compile(step, backend="eager")
        clocks = time.time, time.time_ns
        try:
            if dist.get_rank() == 1:  # as logging and Dynamo see it, while they compile
                time.time = lambda: clocks[0]() + hours * 3600
                time.time_ns = lambda: clocks[1]() + hours * 3_600_000_000_000
            run(torch.ones(3))
        finally:
            time.time, time.time_ns = clocks
        with record() as rec:
            run(torch.ones(3))
        return rec

    both = merge(ranks.run(jumping, hours))
    assert first_difference(both) is None and both.notes == []
    assert [(row.func, row.id, row.runs, row.during) for row in both.compiles] == [
        ("step", "0/0", 1, False)
    ] * 2
    assert all(0 <= one.start_us < 60e6 for one in both.ranges)


def test_collectives_of_another_shape_are_where_they_part(ranks):
    def different():
        import torch
        import torch.distributed as dist
        from oddrank.record import record

        shape = (2, 3) if dist.get_rank() == 0 else (3, 2)
        with record(shapes=True) as rec:
            dist.all_reduce(torch.ones(4))
            dist.all_reduce(torch.ones(shape))
        return rec

    found = first_difference(merge(ranks.run(different)))
    if torch.__version__.startswith("2.11."):  # it keeps no shapes of lists of tensors
        assert found is None
        return
    assert str(found) == (
        "forward 0, step 1: rank 0: collective all_reduce of 2x3; rank 1: collective all_reduce of 3x2"
    )


def test_a_failing_block_leaves_the_rank_able_to_record(ranks):
    def failing():
        import torch
        from oddrank.record import record

        try:
            with record() as rec:
                torch.ones(2).sin()
                raise RuntimeError("mine")
        except RuntimeError as error:
            return str(error), rec

    for said, rec in ranks.run(failing).values():
        assert said == "mine" and "aten::sin" in {one.name for one in rec.ranges}


def test_collectives_over_shared_memory_are_counted_once():
    labkit = pytest.importorskip("labkit")
    with labkit.Ranks(2, device="cpu", backend="shm", timeout=120, quiet=True) as two:
        two.run(compile_model, "disabled")
        both = merge(two.run(record_model))
    assert [(row.collectives, row.at_collective) for row in both.counts] == [(2, 2), (2, 2)]
    assert both.label == "shm · cpu"

"""Records made on real ranks: they travel back, share a clock, and show where ranks part."""

from __future__ import annotations

import pytest

from labkit import hardware
from labkit.records import merge


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

    import labkit

    with labkit.record() as rec:
        for _ in range(2):
            with rec.forward():
                sys.__dict__["labkit_model"]()
    return rec


@pytest.mark.parametrize(("gate", "expected"), [("disabled", [4, 2, 2, 2, 2]), ("in place", [2, 0, 0, 2, 1])])
def test_ranks_agree_and_code_compiled_by_an_earlier_call_has_its_name(ranks, gate, expected):
    ranks.run(compile_model, gate)
    both = merge(ranks.run(record_model))
    counts = both.counts
    assert both.ranks == [0, 1] and both.label == "gloo · cpu" and both.notes == []
    for _, row in counts.iterrows():
        assert row[["regions", "breaks", "at_collective", "collectives", "graphs"]].tolist() == expected
    assert set(both.graphs["name"].str.split(",").str[0]) == {"Block.forward"}
    assert both.first_difference() is None


def test_transfers_have_their_own_thread_and_overlap_on_the_shared_clock(ranks):
    ranks.run(compile_model, "disabled")
    both = merge(ranks.run(record_model))
    moved = both.events[both.events["kind"] == "transfer"].sort_values("start_us")
    assert moved["thread"].str.startswith("gloo").all()
    mine, theirs = (moved[moved["rank"] == rank].reset_index() for rank in (0, 1))
    assert len(mine) == len(theirs) == 4
    # the two ends of one all-reduce cannot miss each other in time
    assert (mine["start_us"] < theirs["end_us"]).all() and (theirs["start_us"] < mine["end_us"]).all()


def test_waiting_for_a_late_rank_is_time_of_the_collective(ranks):
    def late():
        import time

        import torch
        import torch.distributed as dist

        import labkit

        x = torch.ones(4)
        dist.barrier()
        with labkit.record() as rec:
            if dist.get_rank() == 1:
                time.sleep(0.05)
            dist.all_reduce(x)
        return rec

    both = merge(ranks.run(late))
    calls = both.events[both.events["kind"] == "collective"].set_index("rank")
    assert calls.loc[0, "end_us"] > calls.loc[1, "start_us"]  # rank 0 cannot be done before rank 1 has come


def test_a_break_on_one_rank_is_where_they_part(ranks):
    def different():
        import torch
        import torch.distributed as dist

        import labkit

        torch._dynamo.reset()
        talks = dist.get_rank() == 1

        def step(x):
            y = x.sin()
            if talks:
                torch._dynamo.graph_break()
            return y.cos()

        run = torch.compile(step, backend="eager")
        run(torch.ones(3))
        with labkit.record() as rec:
            run(torch.ones(3))
        return rec

    both = merge(ranks.run(different))
    found = both.first_difference()
    assert (found.forward, found.index, found.odd) == (0, 0, [1])
    assert found.steps[0].kind == "region" and found.steps[0].end_us > found.steps[0].start_us
    assert both.counts["breaks"].tolist() == [0, 1]
    assert "graph_break()" in both.breaks.iloc[0]["reason"] and "(step)" in both.breaks.iloc[0]["place"]


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_on_one_rank_is_no_difference(ranks, hours):
    def jumping(hours):
        import time

        import torch
        import torch.distributed as dist

        import labkit

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
        with labkit.record() as rec:
            run(torch.ones(3))
        return rec

    both = merge(ranks.run(jumping, hours))
    assert both.first_difference() is None and both.notes == []
    assert both.graphs[["name", "compile_id", "calls"]].values.tolist() == [["step", "0/0", 1]] * 2
    assert (both.compiles["during"] == [False, False]).all()
    assert both.events["start_us"].between(0, 60e6).all()


def test_collectives_of_another_shape_are_where_they_part(ranks):
    def different():
        import torch
        import torch.distributed as dist

        import labkit

        shape = (2, 3) if dist.get_rank() == 0 else (3, 2)
        with labkit.record(shapes=True) as rec:
            dist.all_reduce(torch.ones(4))
            dist.all_reduce(torch.ones(shape))
        return rec

    found = merge(ranks.run(different)).first_difference()
    if hardware.torch_version().startswith("2.11."):  # it keeps no shapes of lists of tensors
        assert found is None
        return
    assert str(found) == (
        "forward 0, step 1: rank 0: collective all_reduce of 2x3; rank 1: collective all_reduce of 3x2"
    )


def test_a_failing_block_leaves_the_rank_able_to_record(ranks):
    def failing():
        import torch

        import labkit

        try:
            with labkit.record() as rec:
                torch.ones(2).sin()
                raise RuntimeError("mine")
        except RuntimeError as error:
            return str(error), rec

    for said, rec in ranks.run(failing).values():
        assert said == "mine" and "aten::sin" in set(rec.events["name"])


def test_collectives_over_shared_memory_are_counted_once(shm_ranks):
    shm_ranks.run(compile_model, "disabled")
    both = merge(shm_ranks.run(record_model))
    assert both.counts["collectives"].tolist() == [2, 2]
    assert both.counts["at_collective"].tolist() == [2, 2]
    assert both.label == "shm · cpu"

"""`record()` in one process: counts by execution, segments, and what runs outside of a mark."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from oddrank.record import record
from torch import nn

from oddrank import torch_names

pytestmark = pytest.mark.usefixtures("fresh", "fake_group")


@torch.compiler.disable
def reduced(x):
    dist.all_reduce(x)
    return x


class Norm(nn.Module):
    def forward(self, x):
        squares = reduced(x.pow(2).sum(-1, keepdim=True))
        return x * torch.rsqrt(squares / 16 + 1e-6)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm, self.linear = Norm(), Norm(), nn.Linear(8, 8)

    def forward(self, x):
        q = self.q_norm(self.linear(x))
        k = self.k_norm(self.linear(x))
        x = x + reduced(q * k)
        return x + reduced(x * 2)


class Model(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def counted(rec) -> tuple[float | None, ...]:
    (row,) = rec.counts
    ran = (row.regions, row.breaks, row.at_collective, row.collectives, row.lookups)
    return (*ran, row.graphs, row.static_breaks, row.gave_up)


def test_forty_blocks_with_disabled_collectives():
    counters = torch_names.require("torch._dynamo.utils").counters
    counters.clear()
    run, x = torch.compile(Model(40), backend="eager"), torch.randn(4, 8)
    run(x)
    with record() as rec:
        run(x)
    # 160 collectives; the norms' breaks break the block's frame as well; static counters do not see any of that
    assert counted(rec) == (360, 240, 160, 160, 360, 7, 5, 1)
    assert counters["stats"]["unique_graphs"] == 7
    assert sum(counters["graph_break"].values()) == 5


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_two_blocks_are_counted_and_cut_into_segments_by_forward(backend):
    run, x = torch.compile(Model(2), backend=backend), torch.randn(4, 8)
    run(x)
    with record() as rec:
        run(x)  # outside of a mark: not counted
        for _ in range(3):
            with rec.forward():
                run(x)
    assert counted(rec) == (18, 12, 8, 8, 18, 7, 5, 1)
    assert [row.runs for row in rec.compiles if row.outcome == "graph"] == [6, 12, 12, 6, 6, 6, 6]
    assert sum(one.forward == -1 for one in rec.ranges) > 18
    # each collective stands at the break before it, and its range in the timeline has that line
    calls = [one for one in rec.ranges if one.kind == "collective" and one.forward >= 0]
    lines = {(one.file, one.line) for one in calls}
    assert lines == {(one.file, one.line) for one in rec.collectives} and len(lines) == 3 and len(calls) == 24
    for whole in (one for one in rec.ranges if one.kind == "forward"):
        mine = [one for one in rec.segments if one.forward == whole.forward]
        assert all(a.end_us == b.start_us for a, b in pairwise(mine))
        assert (mine[0].start_us, mine[-1].end_us) == (whole.start_us, whole.end_us)


def test_async_collectives_barriers_and_broadcasts_are_collectives():
    def several(x):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.barrier()
        dist.broadcast(x, 0)
        return x + 1

    run = torch.compile(several, backend="eager")
    run(torch.ones(2))
    with record() as rec:
        run(torch.ones(2))
    calls = [one.name for one in rec.ranges if one.kind == "collective"]
    assert calls == ["c10d::allreduce_", "c10d::barrier", "c10d::broadcast_"]
    assert rec.counts[0].at_collective == 3
    assert any("async_op=True" in one.reason for one in rec.breaks)
    assert rec.label == "host only"

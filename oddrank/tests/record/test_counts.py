"""Regions, breaks and graphs: the same with operators and without, as the profiler and the backend count them."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict

import pytest
import torch
from oddrank.record import record
from torch import nn

from oddrank import torch_names

# what a record without operators has as well
COUNTED = ("forwards", "regions", "breaks", "graph_runs", "graphs", "backend_graphs", "static_breaks")
COUNTED += ("gave_up", "recompiles")
pytestmark = pytest.mark.usefixtures("fresh")
needs_every_region = pytest.mark.skipif(
    not torch_names.sees_every_region(), reason="this torch shows only regions with a graph"
)


@torch.compiler.disable
def hidden(*_):
    """What Dynamo has to leave the graph for."""


def nothing_between():
    """The rest of the frame begins with another break: the first region has no graph."""

    def step(x):
        hidden("a")
        x = x + 1
        hidden("b")
        return x * 2

    run = torch.compile(step, backend="eager")
    return lambda: run(torch.ones(3))


def one_version_breaks():
    def either(x, talk):
        x = x + 1
        if talk:
            hidden()
        return x * 2

    run = torch.compile(either, backend="eager")
    return lambda: [run(torch.ones(3), talk) for talk in (True, False, False)]


def equal_code():
    made = [torch.compile(lambda x, k=k: hidden(k) or x + k, backend="eager") for k in range(3)]
    return lambda: [run(torch.ones(2)) for run in made]


def branch_and_loop():
    def grow(x):
        y = x * 2
        while y.sum() < 100:
            y = y * 2
        return y

    run = torch.compile(grow, backend="eager")
    return lambda: run(torch.ones(3))


def nested():
    inner = torch.compile(lambda x: x.sin() + 1, backend="eager")
    middle = torch.compiler.disable(lambda x: inner(x))
    outer = torch.compile(lambda x: middle(x * 2) + inner(x), backend="eager")
    return lambda: outer(torch.ones(3))


def given_up():
    def looping(x):
        for i in range(3):
            hidden(i)
            x = x + 1
        return x

    run = torch.compile(looping, backend="eager")
    return lambda: run(torch.ones(3))


def optimizer():
    layer = nn.Linear(4, 4)
    adam = torch.optim.Adam(layer.parameters())
    step = torch.compile(adam.step, backend="eager")

    def train():
        with torch.enable_grad():
            layer(torch.ones(2, 4)).sum().backward()
        step()

    return train


def another_thread():
    run = torch.compile(lambda x: x + 1, backend="eager")

    def both():
        thread = threading.Thread(target=run, args=(torch.ones(3),))
        thread.start()
        thread.join()
        run(torch.ones(3))

    return both


PROGRAMS = [
    nothing_between, one_version_breaks, equal_code, branch_and_loop, nested, given_up, optimizer, another_thread,
]  # fmt: skip


def recorded(make, operators, warm, forwards=3):
    torch_names.dynamo_reset()
    run = make()
    if warm:
        run()
    with record(operators=operators) as rec:
        for _ in range(forwards):
            with rec.forward():
                run()
    return rec


def all_counts(rec):
    counts = {name: value for name, value in asdict(rec.counts[0]).items() if name in COUNTED}
    return counts, [(row.name, row.operators, row.runs) for row in rec.compiles], rec.breaks


@needs_every_region
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("make", PROGRAMS)
def test_counts_are_the_same_without_operators(make, warm):
    full, light = (recorded(make, operators, warm) for operators in (True, False))
    assert all_counts(full) == all_counts(light)
    assert full.segments and not light.segments and "only regions were kept" in light.notes[-1]


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="Dynamo of 2.11 crashes on a second thread")
@pytest.mark.parametrize("operators", [True, False])
def test_regions_are_those_of_the_profiler_on_every_thread(operators):
    assert recorded(another_thread, operators, warm=True).counts[0].regions == 2
    if torch_names.sees_every_region():
        run = branch_and_loop()
        run()
        with torch.profiler.profile() as profile:
            run()
        seen = sum(e.name.startswith("Torch-Compiled Region") for e in profile.events())
        regions = 6 if sys.version_info < (3, 12) else 1  # what Dynamo makes of the loop
        assert recorded(branch_and_loop, operators, warm=True).counts[0].regions == seen == regions


def test_no_profiler_runs_without_operators_and_nothing_stays_behind():
    utils = torch_names.require("torch._dynamo.utils")
    plain = utils.record_pregraph_bytecode_enter
    run = nothing_between()
    run()
    with torch.profiler.profile() as profile, record(operators=False) as rec:
        run()
    assert rec.counts[0].regions and len(profile.events())
    assert utils.record_pregraph_bytecode_enter is plain
    with record(operators=False) as rec:
        assert not torch_names.profiler_running()


def test_a_torch_that_hides_regions_without_a_graph_is_said_in_the_record(monkeypatch):
    """As torch 2.11 does it, which has the mark in front of a graph and no more; 2.15 has not even that."""
    monkeypatch.delattr(torch._C._dynamo.eval_frame, "set_bytecode_debugger_callback", raising=False)
    rec = recorded(nothing_between, False, warm=True)
    assert rec.counts[0].regions < 3 and "only regions with a graph" in rec.notes[-1]
    assert not any("only regions with a graph" in note for note in recorded(nested, True, warm=True).notes)


def test_who_listens_to_entries_may_stop_in_any_order_and_leaves_nothing():
    first, second = [], []
    run = torch.compile(lambda x: x + 1, backend="eager")
    stop_first = torch_names.on_region_entry(lambda code: first.append(code))
    stop_second = torch_names.on_region_entry(lambda code: second.append(code))
    run(torch.ones(2))
    stop_first()
    run(torch.ones(2))
    assert (len(first), len(second)) == (1, 2)
    stop_second()
    stop_second()
    run(torch.ones(2))
    assert len(second) == 2 and not torch_names.names._entry_undo


class Layer(nn.Module):
    """1.4 MB: DDP's buckets of 1 MiB end behind each."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(600, 600)

    def forward(self, x):
        return self.linear(x).relu()


class Deep(nn.Module):
    """Without a loop: FSDP2's hooks break a graph at each layer, and a frame that breaks in a loop is given up."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.first, self.second, self.third = self.layers

    def forward(self, x):
        x = self.third(self.second(self.first(x)))
        hidden()
        return x.sum() * 2


def trained(shard):
    """A step of both kinds of record on one rank, and what a counting backend was given and ran in one step."""
    from torch.distributed.fsdp import fully_shard

    given, ran = [], []

    def counting(graph, inputs):
        given.append(graph)

        def run(*args):
            ran.append(graph)
            return graph.forward(*args)

        return run

    torch.manual_seed(0)
    model = Deep()
    if shard:
        for layer in model.layers:
            fully_shard(layer)
        model = fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    compiled = torch.compile(model, backend=counting)
    for _ in range(2):
        compiled(torch.ones(2, 600)).backward()
    found = []
    for operators in (True, False):
        ran.clear()
        with record(operators=operators) as rec, rec.forward():
            compiled(torch.ones(2, 600)).backward()
        (counts,) = rec.counts
        found.append(
            ({name: getattr(counts, name) for name in COUNTED}, [row.graphs for row in rec.compiles])
        )
        found.append((len(ran), len(given)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True], ids=["DDP", "FSDP2"])
def test_a_training_step_counts_what_the_backend_was_given(ranks, shard):
    for full, seen, light, again in ranks.run(trained, shard).values():
        counts = full[0]
        assert full == light and seen == again
        assert (counts["graph_runs"], counts["backend_graphs"]) == seen
        assert counts["regions"] > counts["graphs"] > 0 and counts["breaks"] > 0
        assert shard or counts["backend_graphs"] > counts["graphs"]

"""What lesson 13 states: when messages are sent, what they hide, and whose gradients are those of one process."""

from __future__ import annotations

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import nn

from course.shared.variants import with_own_code
from labkit import Ranks, timing
from labkit.ranks.output import quiet_stderr

LESSON = "13_ddp_and_compiled_autograd"
PARAMETERS = {"BLOCKS": 4, "LINK": 4, "PER_MIB": 30, "ROUNDS": 4, "CAPS": [1]}
pytestmark = pytest.mark.slow


def cells(*ids):
    """The program and the solutions, and these cells up to their first use of ranks."""
    space = lesson_cells.definitions(LESSON, "cell-12-l13", "cell-21-l13", *ids)
    space |= {**PARAMETERS, "quiet_stderr": quiet_stderr, "with_own_code": with_own_code}
    space |= {"timing": timing, "pd": pd}  # in place: it is what the functions see
    return space


@pytest.fixture(scope="module", params=(2, 4))
def several(request):
    with Ranks(request.param, device="cpu", backend="gloo", quiet=True) as ranks:
        yield ranks


class Other(nn.Module):
    """No model of the lesson: norms, biases, another width, and a weight that is frozen."""

    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.ModuleList()
        for hidden in (40, 8, 24):
            part = nn.Sequential(
                nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width), nn.LayerNorm(width)
            )
            self.layers.append(part)
        self.layers[1][0].weight.requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _apart(space, form, compiled, loss):
    """How far gradients of `form` are from those of one process that computes the whole loss, after the second step."""
    torch._dynamo.reset()
    n, me = dist.get_world_size(), dist.get_rank()
    x = torch.randn(6 * n, 24, generator=torch.Generator().manual_seed(1))
    plain, model = space["seeded"](Other), space["seeded"](Other)
    each = plain(x).square().sum(1)
    (each.mean() if loss == "mean" else each.sum()).backward()
    finish, forward = (lambda: None), model
    compiling = {"backend": "aot_eager"}
    if form == "DDP":
        forward = space["torch_ddp"](model, space["Link"](0))
        forward = torch.compile(forward, **compiling) if compiled else forward
    elif form == "DDP inside":
        forward = space["torch_ddp"](
            torch.compile(model, **compiling) if compiled else model, space["Link"](0)
        )
    else:
        finish = space["my_buckets_solution"](model, 3000)
        buckets = space["full_buckets"](model, 3000)
        if form == "cut" and compiled:
            forward = space["my_cuts_solution"](
                model.layers, buckets, lambda part: torch.compile(nn.Sequential(*part), **compiling)
            )
        elif compiled:
            forward = torch.compile(model, **compiling)
    with quiet_stderr():
        for _ in range(2):
            model.zero_grad()
            each = forward(x.chunk(n)[me]).square().sum(1)
            (each.mean() if loss == "mean" else each.sum() * n).backward()
            finish()
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)]
    assert all((a is None) == (b is None) for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs if b is not None)


@pytest.mark.parametrize("loss", ("mean", "sum"))
@pytest.mark.parametrize("form", ("DDP", "DDP inside", "buckets", "cut"))
def test_gradients_are_those_of_one_process_for_both_losses(several, form, loss):
    space = {name: value for name, value in cells().items() if name in USED}
    for compiled in (False, True):
        found = several.run(_apart, space, form, compiled, loss, timeout=200)
        assert max(found.values()) < 1e-5, (form, compiled, loss, found)


USED = ("seeded", "torch_ddp", "Link", "my_buckets_solution", "full_buckets", "my_cuts_solution")


def test_what_is_read_of_a_dtensor_has_the_gradient_that_the_table_says(several):
    space = cells("cell-35-l13")
    for placement, reads in ((space["Shard"](0), 2), (space["Replicate"](), 4)):
        found = several.run(space["read_all"], placement, timeout=200)
        for mine in found.values():
            assert len(mine) == 2 * reads
            for (read, _mode), row in mine.items():
                right = "summed" if "Partial" in read else "replicated"
                assert {loss for loss, said in row.items() if said.startswith("right")} == {right}, (
                    read,
                    row,
                )


def test_accumulation_has_the_gradients_of_one_process_and_sends_once(several):
    space = cells("cell-33-l13")
    for compiled in (False, True):
        rows = {how: several.run(space["accumulated"], how, compiled, timeout=200)[0] for how in space["HOW"]}
        assert [row["messages"] for row in rows.values()] == [2, 1, 2, 1, 1]
        apart = [float(row["relative error"]) for row in rows.values()]
        assert max(apart[:4]) < 1e-5 < apart[4]


def test_a_graph_sends_at_its_end_and_a_bucket_that_does_not_end_with_it_waits(ranks):
    space = cells("cell-27-l13")

    def sent(build):
        row = ranks.run(space["graphs_and_sends"], build, timeout=200)[0]
        return row["graphs"], row["sent after"]

    def case(**more):
        return space["partial"](space["compiled_ddp"], blocks=4, **more)

    assert sent(space["partial"](space["eager_ddp"], cap_mb=1)) == (0, "6, 10, 14, 17")
    assert sent(space["partial"](space["eager_ddp"], cap_mb=2)) == (0, "10, 17")
    assert sent(case()) == (4, "6, 10, 14, 17")
    assert sent(case(mode="no_optimization")) == (1, "17, 17, 17, 17")
    assert sent(case(cap_mb=2)) == (3, "14, 17")
    assert sent(case(cap_mb=25)) == (2, "17")
    assert sent(case(cap_mb=None)) == (2, "6, 17")


class Tied(nn.Module):
    """(batch,) of numbers -> (batch, 1100). The head's weight is the embedding's, so its gradient is complete last."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1100, 256)
        layers = [nn.Sequential(nn.Linear(256, 512, False), nn.Linear(512, 256, False)) for _ in range(6)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        x = self.embedding(x[:, 0].long())
        for layer in self.layers:
            x = x + layer(x).relu()
        return x @ self.embedding.weight.T


def test_a_bucket_with_a_tied_weight_waits_for_the_embedding(ranks):
    space = cells("cell-27-l13")

    def sent(**more):
        build = space["partial"](space["compiled_ddp"], make=Tied, **more)
        return [
            int(n)
            for n in ranks.run(space["graphs_and_sends"], build, timeout=200)[0]["sent after"].split(", ")
        ]

    left_out, one = sent(cap_mb=None), sent(cap_mb=1)
    assert min(left_out) == max(left_out)  # nothing overlaps, with bucket_cap_mb left out
    assert len(one) > 4 and one[0] < one[-1] == left_out[-1]


class Inherits(nn.Sequential):
    """A user's class, whose forward is torch's."""

    def __init__(self, chain):
        super().__init__(*chain(4))


class Calls(nn.Module):
    """The same layers, called in a forward of the user."""

    def __init__(self, chain):
        super().__init__()
        self.net = chain(4)

    def forward(self, x):
        return self.net(x)


def encoder(chain):
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_a_sequential_is_not_compiled_and_a_checkpoint_is_not_cut(ranks):
    space = cells("cell-27-l13", "cell-31-l13")

    def row(build):
        return ranks.run(space["graphs_and_sends"], build, timeout=200)[0]

    ddp = space["partial"](space["compiled_ddp"], blocks=4)
    assert row(space["partial"](ddp, make=space["chain"]))["graphs"] == 0
    assert row(space["inside"])["graphs"] == 4
    for make, graphs in ((Inherits, 0), (encoder, 0), (Calls, 4)):  # whose forward runs
        own = space["partial"](make, space["chain"])
        assert row(space["partial"](space["compiled_ddp"], make=own))["graphs"] == graphs, make
    equal = space["partial"](ddp, make=space["chain_of_blocks"])
    assert [row(space["partial"](equal, blocks=n))["graphs"] for n in (1, 2, 3)] == [1, 2, 2]
    assert row(space["partial"](ddp, make=space["Checkpointed"]))["sent after"] == "8, 13, 18, 22"
    two = space["partial"](space["Checkpointed"], together=2)
    assert row(space["partial"](ddp, make=two))["graphs"] == 2


def test_compiled_autograd_captures_one_graph_in_which_each_message_is_waited_for_at_once(ranks):
    space = cells("cell-37-l13")
    broken = ranks.run(space["captured"], space["Broken"], timeout=200)[0]
    assert broken[:2] == (2, 1) and set(broken[2].split(", ")) == {"mm"}
    graphs, captured, calls = ranks.run(space["captured"], space["Model"], True, timeout=200)[0]
    calls = calls.split(", ")
    assert (graphs, captured, calls.count("all_reduce")) == (1, 1, 3)
    assert all(calls[i + 1] == "wait_tensor" for i, call in enumerate(calls) if call == "all_reduce")


def test_messages_hide_time_from_hooks_and_none_after_backward_or_in_one_bucket(ranks):
    space = cells("cell-15-l13", "cell-29-l13")
    ways = {name: space[name] for name in ("in_hooks", "after_backward", "cut_by_hand")}
    ways["one bucket"] = space["partial"](space["by_ddp_optimizer"], cap_mb=25)
    found = ranks.run(space["clock"], ways, 4, timeout=300)
    hidden = {
        name: sorted(min(space["hidden"](one[1][name][i]) for one in found.values()) for i in range(4))
        for name in ways
    }
    assert hidden["after_backward"][-1] == 0 and hidden["one bucket"][-1] < 1
    assert hidden["in_hooks"][1] > 5 and hidden["cut_by_hand"][1] > 5, hidden

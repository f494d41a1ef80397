"""Lesson 13 outside its example: other models, three ranks, gradients against one process."""

from __future__ import annotations

import lesson_cells
import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.ranks.output import quiet_stderr

LESSON = "13_ddp_and_compiled_autograd"
pytestmark = pytest.mark.slow


def cells(*ids):
    """The program and the solutions, and these cells up to their first use of ranks."""
    space = lesson_cells.definitions(LESSON, "cell-12-l13", "cell-21-l13", *ids)
    space |= {"BLOCKS": 4, "quiet_stderr": quiet_stderr}  # in place: it is what the functions see
    return space


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
    each = (plain(x) - x).square().sum(1)  # alone, a normed row's sum of squares has next to no gradient
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
            mine = x.chunk(n)[me]
            each = (forward(mine) - mine).square().sum(1)
            (each.mean() if loss == "mean" else each.sum() * n).backward()
            finish()
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)]
    assert all((a is None) == (b is None) for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs if b is not None)


@pytest.mark.parametrize("form", ("DDP", "DDP inside", "buckets", "cut"))
def test_gradients_are_those_of_one_process_for_both_losses(three, form):
    space = {name: value for name, value in cells().items() if name in USED}
    for loss, compiled in (("mean", False), ("mean", True), ("sum", True)):
        found = three.run(_apart, space, form, compiled, loss, timeout=200)
        assert max(found.values()) < 1e-5, (form, compiled, loss, found)


USED = ("seeded", "torch_ddp", "Link", "my_buckets_solution", "full_buckets", "my_cuts_solution")


def test_what_is_read_of_a_dtensor_has_the_gradient_that_the_table_says(three):
    space = cells("cell-35-l13")
    for placement, reads in ((space["Shard"](0), 2), (space["Replicate"](), 4)):
        found = three.run(space["read_all"], placement, timeout=200).same()
        assert len(found) == 2 * reads
        for (read, _mode), row in found.items():
            right = "summed" if "Partial" in read else "replicated"
            assert {loss for loss, said in row.items() if said.startswith("right")} == {right}, (read, row)


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
    """Torch's own, with no layer of the chain."""
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_what_counts_is_whose_forward_runs(ranks):
    space = cells("cell-27-l13", "cell-31-l13")
    for make, graphs in ((Inherits, 0), (encoder, 0), (Calls, 4)):
        own = space["partial"](make, space["chain"])
        build = space["partial"](space["compiled_ddp"], make=own)
        assert ranks.run(space["graphs_and_sends"], build, timeout=200)[0]["graphs"] == graphs, make


def _sent(space, name):
    """After how many matmuls each message of a backward was sent: what `finish` sends, after all 17."""
    torch._dynamo.reset()
    link = space["Link"](0)
    forward, finish = space[name](space["seeded"](blocks=4), link)
    with quiet_stderr():
        loss = forward(torch.ones(64, 256)).square().mean()
        with link.matmuls:
            loss.backward()
    finish()
    return [message["after"] for message in link.sent]


@pytest.mark.parametrize(
    ("name", "after"),
    [("in_hooks", [6, 10, 14, 17]), ("cut_by_hand", [6, 10, 14, 17]), ("after_backward", [17] * 4)],
)
def test_the_timed_ways_send_from_hooks_or_after_backward(ranks, name, after):
    space = cells("cell-15-l13", "cell-29-l13")
    used = {each: space[each] for each in ("Link", "seeded", name)}
    assert ranks.run(_sent, used, name, timeout=200).same() == after

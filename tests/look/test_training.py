"""What recorded steps did not train, trained on one batch, or averaged without need; each with its repaired twin."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch
import torch.distributed as dist
from oddrank.look.causes import causes
from oddrank.look.function import look
from oddrank.look.page import html
from torch import nn

pytestmark = pytest.mark.slow


class Net(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.unused = nn.Linear(dim, dim)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x, cut=False, gate=True):
        y = self.up(x)
        y = self.down((y.detach() if cut else y).relu())
        return x + y * (self.gate if gate else 1)


def train(what: str, wrong: bool) -> None:
    """Train in one of the ways that nothing reports, or as it was meant."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch._dynamo.reset()
    torch.manual_seed(1)
    net: nn.Module = Net(12)
    left_out = ("unused", "gate")
    trained = [p for name, p in net.named_parameters() if not name.startswith(left_out)]
    if what == "stale":
        early = torch.optim.SGD(trained, 0.1)
    if what in ("stale", "sharded"):
        run: nn.Module = torch.compile(fully_shard(net), backend="aot_eager")
        trained = [p for name, p in net.named_parameters() if not name.startswith(left_out)]
    else:
        net = DDP(net, find_unused_parameters=True)
        run = torch.compile(net, backend="aot_eager")
    optimizer = early if what == "stale" and wrong else torch.optim.SGD(trained, 0.1)
    generator = torch.Generator().manual_seed(3 if what == "batch" and wrong else dist.get_rank())
    for _ in range(6):
        for micro in range(3 if what in ("averaged", "sharded") else 1):
            x, last = torch.randn(4, 12, generator=generator), micro == 2
            quiet = net.no_sync if what == "averaged" and not last else contextlib.nullcontext
            if what == "sharded" and not wrong:
                net.set_requires_gradient_sync(last)
            with contextlib.nullcontext() if wrong else quiet():
                loss = run(x, cut=what == "cut" and wrong, gate=what == "zero" and wrong).square().mean()
            with quiet():
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def two(kind: str) -> None:
    """Train two networks with an optimizer each, or one whose gradients are cleared between backwards."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch._dynamo.reset()
    torch.manual_seed(1)
    nets = [DDP(nn.Linear(12, 12)) for _ in range(2 if kind == "networks" else 1)]
    runs = [torch.compile(net, backend="aot_eager") for net in nets]
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        for run in runs * (3 - len(runs)):
            if kind == "cleared":  # as where a scaler skips a step
                optimizers[0].zero_grad()
            run(torch.randn(4, 12, generator=generator)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


SAID = {
    "cut": r"2 of 4 parameters \(up.weight, up.bias\) had no gradient in 3 of 3 recorded optimizer steps",
    "zero": r"the gradient of 4 of 4 parameters \(up.weight, up.bias, down.weight, down.bias\) was zero in 3 of 3",
    "stale": r"the optimizer steps on 4 tensors that no module holds, and none of them had a gradient in 3 of 3",
    "batch": r"ranks 0, 1 average their gradients, and computed the same batch: .* in 3 of 3 recorded steps",
    "averaged": r"DDP averaged the gradients of Net in each of 9 backwards, though 3 backwards make .*: .* MB a step",
    "sharded": r"fully_shard averaged the gradients of Net in each of 9 backwards, though 3 backwards make one",
}
NEEDED = ("had no gradient", "was zero", "no module holds", "the same batch", "are not needed")


@pytest.mark.parametrize("what", SAID)
def test_what_is_silent_is_said_and_its_repaired_twin_stays_silent(ranks, what):
    found = causes(look(ranks, train, what, True))
    (one,) = [cause for cause in found if re.search(SAID[what], cause.said)]
    if what == "averaged":
        assert re.search(r"no_sync at .*test_training.py:\d+ held no forward", one.why)
    others = [
        cause.said for cause in found if cause is not one and any(word in cause.said for word in NEEDED)
    ]
    assert others == []
    said = [cause.said for cause in causes(look(ranks, train, what, False))]
    assert not [one for one in said if any(word in one for word in NEEDED)], said


@pytest.mark.parametrize("kind", ["networks", "cleared"])
def test_backwards_that_are_for_something_else_are_not_taken_for_accumulation(ranks, kind):
    looked, several = look(ranks, two, kind), kind == "networks"
    assert not [cause.said for cause in causes(looked) if "not needed" in cause.said]
    checked = re.findall("<li>(.*?)</li>", html(looked).partition("looked at in the training")[2])
    assert checked[0].startswith(f"gradients of {4 if several else 2} parameters in 3 optimizer steps")
    assert re.search(
        "not looked at: there are several modules" if several else "Linear: in 6 of 6 backwards", checked[1]
    )
    assert "whether inputs and losses of ranks 0, 1 were the same batch" in checked


def frozen(why: str, wrong: bool) -> None:
    """Train with a rate of 0, or in a dtype in which updates of weights near 1 round away."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12), nn.Linear(12, 1))
    if why == "dtype" and wrong:
        net.to(torch.bfloat16)
    run = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.AdamW(
        net.parameters(), 0.0 if why == "rate" and wrong else 1e-4, weight_decay=0.0
    )
    x = torch.randn(8, 12, dtype=net[0].weight.dtype)
    for _ in range(6):
        run(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


STAYED = {
    "rate": (r"6 of 6 parameters .* did not change in 2 of 2 optimizer steps .*", "their learning rate is 0"),
    "dtype": (
        r"\d of 6 parameters \(1.weight.*\) did not change in 2 of 2 optimizer steps in which they were compared",
        r"they are bfloat16, .* 0.2 to 0.4 % of a number \(learning rate 0.0001\)",
    ),
}


@pytest.mark.parametrize("why", STAYED)
def test_parameters_that_keep_their_values_are_said_with_the_reason(ranks, why):
    looked = look(ranks, frozen, why, True)
    (one,) = [cause for cause in causes(looked) if "not change" in cause.said]
    said, reason = STAYED[why]
    assert re.match(said, one.said) and re.match(reason, one.why), one
    top = html(looked).partition("<table>")[0]
    assert "did not differ" in top and f"<p class='bad'>{one.said}" in top, "equal on all ranks is not right"
    looked = look(ranks, frozen, why, False)
    assert not [cause.said for cause in causes(looked) if "not change" in cause.said]
    assert "class='bad'" not in html(looked).partition("<table>")[0]


def forward_backward(run: nn.Module, x: torch.Tensor, cut: bool) -> None:
    run(x, cut=cut, gate=False).square().mean().backward()


def beside(micro: int, wrong: bool) -> None:
    """Name the forward and backward as the step; the optimizer steps outside of it, after so many of them."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch._dynamo.reset()
    torch.manual_seed(1)
    net = DDP(Net(12), find_unused_parameters=True)
    optimizer = torch.optim.SGD([p for name, p in net.named_parameters() if ".up." in name], 0.1)
    run = torch.compile(net, backend="aot_eager")
    generator = torch.Generator().manual_seed(dist.get_rank())
    for n in range(12):
        with contextlib.nullcontext() if wrong or n % micro == micro - 1 else net.no_sync():
            forward_backward(run, torch.randn(4, 12, generator=generator), wrong and micro == 1)
        if n % micro == micro - 1:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    "micro, said",
    [
        (1, r"2 of 2 parameters \(up.weight, up.bias\) had no gradient in 4 of 4 recorded optimizer steps"),
        (
            2,
            r"DDP averaged the gradients of Net in each of 2 backwards, though 2 backwards make one optimizer.step",
        ),
    ],
)
def test_an_optimizer_that_steps_beside_the_named_step_is_seen(ranks, micro, said):
    options = {
        "step": "forward_backward",
        "skip": 3,
        "steps": 5,
    }  # with two a turn: half of one, a whole one, one that ends too late
    told = [cause.said for cause in causes(look(ranks, beside, micro, True, **options))]
    assert [one for one in told if re.match(said, one)], told
    told = [cause.said for cause in causes(look(ranks, beside, micro, False, **options))]
    assert not [one for one in told if any(word in one for word in NEEDED)], told

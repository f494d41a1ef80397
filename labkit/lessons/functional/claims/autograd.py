"""Gradients through collectives, and backward passes captured whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.capture import Capture, first_line
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import compiled_autograd, dynamo_reset, funcol

REDUCTIONS = ("avg", "max", "min", "product")
# On rank 0, of weights 1 and 10, times the 2 of the program: what comes back from both ranks, or from each for its
# half. It is right where the loss is the sum of what the ranks call backward on. Where every rank computes the same
# loss, the gradient through an all-reduce is n times too large on n ranks.
RIGHT = {
    "all_reduce": [22.0] * 4,
    "all_gather": [22.0] * 4,
    "reduce_scatter": [2.0, 2.0, 20.0, 20.0],
    "all_to_all": [2.0, 2.0, 20.0, 20.0],
    "broadcast": [22.0] * 4,
}
OF_A_SUM = "of a loss that is summed over the ranks"
SUPPORTED = [name for name in RIGHT if name != "broadcast"]


@probe
def gradients(bench: Bench) -> Seen:
    """Rank 0's gradient of weights 1 and 10 on two ranks through each collective.

    The loss is the sum of what both ranks call backward on; [2, 2, 2, 2] is rank 0's own share.
    """
    return bench.run(_gradients)[0]


def _gradients() -> Seen:
    world, weight = dist.group.WORLD, 1.0 if dist.get_rank() == 0 else 10.0
    calls: dict[str, Any] = {
        "all_reduce": lambda y: funcol.all_reduce(y, "sum", world),
        "all_gather": lambda y: funcol.all_gather_tensor(y, 0, world),
        "reduce_scatter": lambda y: funcol.reduce_scatter_tensor(y, "sum", 0, world),
        "all_to_all": lambda y: funcol.all_to_all_single(y, None, None, world),
        "broadcast": lambda y: funcol.broadcast(y, 0, world),
        **{op: partial(funcol.all_reduce, reduceOp=op, group=world) for op in REDUCTIONS},
    }

    def weighed(call, x):
        return (call(x * 2) * weight).sum()

    def gradient(call, run=weighed):
        x, when = torch.ones(4, requires_grad=True), "forward: "
        try:
            loss = run(call, x)
            when = ""
            loss.backward()
        except Exception as error:
            return when + first_line(error)
        assert x.grad is not None
        return x.grad.tolist()

    found: Seen = {name: gradient(call) for name, call in calls.items()}
    dynamo_reset()
    compiled = torch.compile(weighed, backend="aot_eager", fullgraph=True)
    return found | {"compiled": gradient(calls["all_reduce"], compiled)}


def _through(seen: Seen) -> tuple[list[str], str]:
    """The collectives with right gradients, of those that are named, and what to say about all."""
    right = [name for name in SUPPORTED if seen[name] == RIGHT[name]]
    right += ["compiled all_reduce"] * (seen["compiled"] == RIGHT["all_reduce"])
    wrong = [
        f"{name} gives {seen[name]} and not {RIGHT[name]}" for name in RIGHT if seen[name] != RIGHT[name]
    ]
    return right, "; ".join([f"{OF_A_SUM}: right through {', '.join(right) or 'none'}", *wrong])


@judging(gradients)
def functional_has_none(seen: Seen) -> Result:
    """No right gradient passes through a functional collective, of a loss that is summed over the ranks."""
    right, said = _through(seen)
    return verdict(not right, said)


@judging(gradients)
def functional_has_gradients(seen: Seen) -> Result:
    """Of a loss that is summed over the ranks right gradients pass through functional sums, gathers, scatters and
    exchanges, compiled sums included."""
    right, said = _through(seen)
    return verdict(len(right) == len(SUPPORTED) + 1, said)


@judging(gradients)
def support_has_limits(seen: Seen) -> Result:
    """Some functional collective that runs forward refuses a backward pass, or gives a wrong gradient of a loss that is
    summed over the ranks."""
    refused = [
        f"{name} ({seen[name]})"
        for name in (*RIGHT, *REDUCTIONS)
        if isinstance(seen[name], str) and not seen[name].startswith("forward")
    ]
    wrong = [
        f"{name} {seen[name]}" for name in RIGHT if isinstance(seen[name], list) and seen[name] != RIGHT[name]
    ]
    return verdict(
        bool(refused or wrong),
        f"refused in the backward pass: {', '.join(refused) or 'none'}; wrong {OF_A_SUM}: {', '.join(wrong) or 'none'}",
    )


@probe
def captured(bench: Bench) -> Seen:
    """A forward with two graph breaks: backward graphs by AOTAutograd, and by compiled autograd."""
    return bench.run(_captured, ranks=1)[0]


def _captured() -> Seen:
    @torch.compiler.disable
    def hidden(x):
        return x * 2

    def broken(x):
        return hidden(hidden(x.sin()).sin()).sin().sum()

    found: Seen = {}
    dynamo_reset()
    graphs = Capture(aot=True)
    x = torch.ones(4, requires_grad=True)
    torch.compile(broken, backend=graphs)(x).backward()
    assert x.grad is not None
    found["aot"] = len(graphs.backward)
    expected, x.grad = x.grad.clone(), None
    dynamo_reset()
    run, whole = torch.compile(broken, backend="aot_eager"), Capture()
    with compiled_autograd(torch.compile(backend=whole, fullgraph=True)):
        y = run(x)
        found["before_backward"] = len(whole.dynamo)
        y.backward()
    found["compiled_autograd"] = len(whole.dynamo)
    assert x.grad is not None
    found["same"] = bool(torch.allclose(x.grad, expected))
    return found


@judging(captured)
def whole_backward_is_captured(seen: Seen) -> Result:
    """Compiled autograd captures the backward pass whole, and as it runs, where AOTAutograd has a graph for a piece."""
    whole, early = seen["compiled_autograd"], seen["before_backward"]
    return verdict(
        whole == 1 < seen["aot"] and not early and seen["same"],
        f"after two breaks: {seen['aot']} backward graphs by AOTAutograd, {whole} by compiled autograd, {early} of "
        "them before backward runs",
    )

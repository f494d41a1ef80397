"""Gradients through collectives, and backward passes captured whole."""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.lessons.shared.capture import Capture, first_line
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import compiled_autograd, dynamo_reset, funcol

REDUCTIONS = ("sum", "avg", "max", "min", "product")


@probe
def gradients(bench: Bench) -> Seen:
    """The gradient of weights 1 and 10 on two ranks through each collective; 22 is right, 2 is rank 0's share alone."""
    return bench.run(_gradients)[0]


def _gradients() -> Seen:
    weight = 1.0 if dist.get_rank() == 0 else 10.0

    def functional(x, op="sum"):
        return (funcol.all_reduce(x * 2, op, dist.group.WORLD) * weight).sum()

    def gather(x):
        return (funcol.all_gather_tensor(x * 2, 0, dist.group.WORLD) * weight).sum()

    def inplace(x):
        y = x * 2
        dist.all_reduce(y)
        return (y * weight).sum()

    def gradient(loss):
        x = torch.ones(4, requires_grad=True)
        try:
            loss(x).backward()
        except Exception as error:
            return first_line(error)
        assert x.grad is not None
        return x.grad[0].item()

    dynamo_reset()
    compiled = torch.compile(functional, backend="aot_eager", fullgraph=True)
    return {
        "functional": gradient(functional),
        "compiled": gradient(compiled),
        "gather": gradient(gather),
        "reductions": {op: gradient(lambda x, op=op: functional(x, op)) for op in REDUCTIONS},
        "inplace": gradient(inplace),
        "right": 22.0,
    }


@judging(gradients)
def functional_has_none(seen: Seen) -> Result:
    """No gradient passes through a functional collective."""
    right = [name for name in ("functional", "compiled", "gather") if seen[name] == seen["right"]]
    return verdict(
        not right,
        f"all_reduce {seen['functional']}, compiled {seen['compiled']}, all_gather {seen['gather']}; right is "
        f"{seen['right']:g}",
    )


@judging(gradients)
def functional_has_gradients(seen: Seen) -> Result:
    """Gradients pass through functional collectives, in eager and compiled, and they are right."""
    names = ("functional", "compiled", "gather")
    right = [name for name in names if seen[name] == seen["right"]]
    return verdict(
        len(right) == len(names),
        f"all_reduce {seen['functional']}, compiled {seen['compiled']}, all_gather {seen['gather']}; right is "
        f"{seen['right']:g}; in place, eager: {seen['inplace']}",
    )


@judging(gradients)
def support_has_limits(seen: Seen) -> Result:
    """Some reductions of a functional all-reduce refuse a backward pass, or give a wrong gradient."""
    found = seen["reductions"]
    refused = [op for op, gradient in found.items() if isinstance(gradient, str)]
    # 22 for the sum, half of it for the average of two; no one value is right for a maximum of equals
    wrong = [op for op, right in (("sum", 22.0), ("avg", 11.0)) if op not in refused and found[op] != right]
    said = ", ".join(f"{op} {gradient}" for op, gradient in found.items() if op not in refused)
    return verdict(
        bool(refused or wrong),
        f"gradients: {said or 'none'}; refused: {', '.join(refused) or 'none'}; wrong: {', '.join(wrong) or 'none'}",
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

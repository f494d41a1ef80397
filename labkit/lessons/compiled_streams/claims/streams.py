"""Functionalization of a changed input: what its graph computes, and where the write-back goes."""

from __future__ import annotations

import torch

from labkit.lessons.shared.capture import Capture, calls
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset


@probe
def mutation(bench: Bench) -> Seen:
    """A function that changes its input and goes on computing: its graph after functionalization."""
    return bench.run(_mutation, ranks=1)[0]


def _mutation() -> Seen:
    def program(x):
        x.mul_(2)
        y = x.add(1)
        return y.sin()

    dynamo_reset()
    graphs, x = Capture(aot=True), torch.ones(4)
    y = torch.compile(program, backend=graphs)(x)
    return {
        "calls": calls(graphs.forward[0]),
        "input_after": x[0].item(),
        "right": bool(torch.allclose(y, torch.full((4,), 3.0).sin())),
    }


@judging(mutation)
def body_is_functional(seen: Seen) -> Result:
    """After functionalization the body computes new values instead of writing into its input."""
    names = seen["calls"]
    return verdict(
        any(".mul." in name for name in names) and not any("mul_" in name for name in names), ", ".join(names)
    )


@judging(mutation)
def write_back_comes_last(seen: Seen) -> Result:
    """The input is written back by a copy_ at the end of the graph, after everything else."""
    names = seen["calls"]
    copies = [i for i, name in enumerate(names) if "copy_" in name]
    return verdict(copies == [len(names) - 1], ", ".join(names))


@judging(mutation)
def caller_sees_the_mutation(seen: Seen) -> Result:
    """After the call the caller finds its tensor changed, as in eager."""
    return verdict(
        seen["input_after"] == 2 and seen["right"], f"1 * 2 is {seen['input_after']:g} in the caller's x"
    )

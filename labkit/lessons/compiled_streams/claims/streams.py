"""Streams in compiled graphs, as far as a machine without a GPU can tell: operator names, and where copies go."""

from __future__ import annotations

import torch

from labkit.lessons.shared.capture import Capture, calls
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, stream_operators


@probe
def operators(bench: Bench) -> Seen:
    """The stream operators that this torch registers, with their schemas."""
    return bench.run(_operators, ranks=1)[0]


def _operators() -> Seen:
    return {"schemas": stream_operators(), "torch": torch.__version__}


def _arguments(schema: str) -> list[str]:
    inside = schema.partition("(")[2].partition(")")[0]
    return [part.split()[-1] for part in inside.split(",") if part.strip()]


def _has(seen: Seen, name: str, arguments: int) -> Result:
    schema = seen["schemas"].get(name, "")
    known = ", ".join(sorted(seen["schemas"])) or "no stream operator"
    return verdict(len(_arguments(schema)) == arguments, schema or f"no {name}; there are {known}")


@judging(operators)
def record_event(seen: Seen) -> Result:
    """There is an operator record_event of an event's and a stream's index."""
    return _has(seen, "record_event", 2)


@judging(operators)
def wait_event(seen: Seen) -> Result:
    """There is an operator wait_event of an event's and a stream's index."""
    return _has(seen, "wait_event", 2)


@judging(operators)
def wait_stream(seen: Seen) -> Result:
    """There is an operator wait_stream of two streams' indices."""
    return _has(seen, "wait_stream", 2)


@judging(operators)
def get_user_obj_by_index(seen: Seen) -> Result:
    """There is an operator get_user_obj_by_index."""
    return _has(seen, "get_user_obj_by_index", 1)


@judging(operators)
def beta_since(seen: Seen) -> Result:
    """This torch has stream operators exactly if it is the claimed release or a later one."""
    claimed, here = (
        tuple(int(part) for part in text.split("+")[0].split(".")[:2])
        for text in (seen["claimed"], seen["torch"])
    )
    said = f"torch {seen['torch']} has {len(seen['schemas'])} stream operators"
    return verdict(bool(seen["schemas"]) == (here >= claimed), said)


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

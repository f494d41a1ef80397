"""Functionalization of a changed input: what its graph computes, and where the write-back goes."""

from __future__ import annotations

import torch

from labkit.lessons.shared.capture import Capture
from labkit.study.checks import HOLDS, Bench, Result, Seen, judging, probe, verdict
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
    nodes = [n for n in graphs.forward[0].graph.nodes if n.op in ("placeholder", "call_function")]
    return {
        "graphs": len(graphs.dynamo),
        "inputs": [n.name for n in nodes if n.op == "placeholder"],
        "steps": [
            {
                "name": n.name,
                "does": str(n.target),
                "takes": [a.name for a in n.all_input_nodes],
                "writes": n.target._schema.is_mutable,
            }
            for n in nodes
            if n.op == "call_function"
        ],
        "input_after": x[0].item(),
        "right": bool(torch.allclose(y, torch.full((4,), 3.0).sin())),
    }


def _said(seen: Seen) -> str:
    return ", ".join(f"{step['name']}({', '.join(step['takes'])})" for step in seen["steps"])


@judging(mutation)
def body_is_functional(seen: Seen) -> Result:
    """After functionalization the body makes a new value of its input, computes with that, and writes nothing."""
    *body, _ = seen["steps"]
    chain = all(step["takes"] == [before] for step, before in zip(body, _chain(seen), strict=False))
    named = [step["does"].split(".")[1] for step in body] == ["mul", "add", "sin"]
    return verdict(named and chain and not any(step["writes"] for step in body), _said(seen))


def _chain(seen: Seen) -> list[str]:
    return [*seen["inputs"][:1], *(step["name"] for step in seen["steps"])]


@judging(mutation)
def write_back_comes_last(seen: Seen) -> Result:
    """A copy_ at the end of the graph, the only write, puts the new value into the input."""
    *body, last = seen["steps"]
    updated = [step["name"] for step in body if ".mul" in step["does"]]
    writes = [step["name"] for step in seen["steps"] if step["writes"]]
    back = ".copy_" in last["does"] and last["takes"] == [*seen["inputs"], *updated]
    return verdict(back and writes == [last["name"]], _said(seen))


@judging(mutation)
def caller_sees_the_mutation(seen: Seen) -> Result:
    """After the call of a compiled region with a functional body the caller finds its tensor changed, as in eager."""
    compiled = seen["graphs"] == 1 and body_is_functional(seen).status == HOLDS
    return verdict(
        seen["input_after"] == 2 and seen["right"] and compiled,
        f"1 * 2 is {seen['input_after']:g} in the caller's x, after {seen['graphs']} graph: {_said(seen)}",
    )

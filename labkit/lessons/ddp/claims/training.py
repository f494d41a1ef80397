"""Data parallel training under the compiler, on two gloo ranks: DDP and FSDP2."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from labkit.graphs import record
from labkit.lessons.shared.capture import Capture, calls
from labkit.lessons.shared.one_step import OneStep, net
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import ddp_mode, dynamo_reset, on_collective


@probe
def parallel(bench: Bench) -> Seen:
    """One training step of a small stack under DDP and FSDP2, eager and compiled: gradients, graphs, breaks."""
    return bench.run(_parallel)[0]


def _parallel() -> Seen:
    one = OneStep()
    mesh, step = one.mesh, one.right
    found: Seen = {}
    dynamo_reset()
    replicated, graphs = DistributedDataParallel(net(), bucket_cap_mb=1), Capture(aot=True)
    run = torch.compile(replicated, backend=graphs)
    right = step(replicated, run)
    found["ddp"] = {
        "right": right,
        "graphs": len(graphs.dynamo),
        "collectives_in_backward": sum("c10d" in c for g in graphs.backward for c in calls(g)),
    }
    found["fsdp"] = {}
    dynamo_reset()
    model, graphs = net(), Capture(aot=True)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for layer in model.layers:
        layer.compile(backend=graphs)
    found["fsdp"]["compiled_right"] = step(model, model)
    found["fsdp"]["graphs"] = len(graphs.dynamo)
    dynamo_reset()
    inner = net()
    inner.compile(backend=(graphs := Capture(aot=True)))
    hooked = DistributedDataParallel(inner)
    found["ddp"]["right_inside"] = step(hooked, hooked) and len(graphs.dynamo) > 0
    dynamo_reset()
    small = DistributedDataParallel(
        net(), bucket_cap_mb=0.02
    )  # a bucket for about a layer, from the second step on
    _eager(small, one.x)
    found["ddp"]["eager"] = _eager(small, one.x)
    # gradients that are returned and added nowhere; and a backward whose graph has no first layer
    found["ddp"]["returned"] = _eager(DistributedDataParallel(net()), one.x, accumulate=False)
    small.module.layers[0].forward = lambda x: x  # type: ignore[method-assign, assignment, union-attr, index]
    found["ddp"]["a_layer_less"] = _eager(small, one.x)
    sharded = net()
    for layer in sharded.layers:
        fully_shard(layer, mesh=mesh)
    found["fsdp"]["eager"] = _eager(fully_shard(sharded, mesh=mesh), one.x)
    return found | {"pieces": _pieces(mesh)}


def _pieces(mesh: Any) -> dict[str, list[int]]:
    """Graphs of backward, and breaks that Dynamo counts: of a compiled model by itself, in DDP, and of one in FSDP2,
    with the hooks of its layers and without."""

    def sharded(model: Any) -> Any:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        return torch.compile(fully_shard(model, mesh=mesh), backend=graphs)

    def unhooked(model: Any) -> Any:
        layers = [fully_shard(layer, mesh=mesh) for layer in model.layers]
        for layer in layers:
            layer.unshard()  # what its hook would do

        def run(x: Any) -> Any:
            for layer in layers:
                x = layer.forward(x)
            return x

        return torch.compile(run, backend=graphs)

    def alone(model: Any) -> Any:
        return torch.compile(model, backend=graphs)

    def replicated(model: Any) -> Any:
        return DistributedDataParallel(alone(model), bucket_cap_mb=2)

    ways = {"alone": alone, "DDP": replicated, "DDP, not cut": replicated, "FSDP2": sharded}
    ways["FSDP2 without its hooks"] = unhooked
    found, x = Seen(), torch.ones(2, 640)  # two layers of this width fill one of DDP's buckets
    for name, make in ways.items():
        dynamo_reset()
        graphs = Capture(aot=True)
        with ddp_mode("no_optimization" if "not" in name else "ddp_optimizer"), record() as rec:
            make(net(640))(x).sum().backward()
        found[name] = [len(graphs.backward), len(rec.breaks)]
    return found


def _eager(model: Any, x: torch.Tensor, accumulate: bool = True) -> Seen:
    """How many reductions one step starts in forward, in backward, and after the last gradient of backward.

    `callers`: what a collective in backward starts in.
    """
    phase, started = "forward", {"forward": 0, "backward": 0, "behind": 0}
    callers: set[str] = set()

    def reached(name: str) -> None:
        nonlocal phase
        phase = name

    def seen(name: str, nbytes: int) -> None:
        started[phase] += "reduce" in name
        if phase != "forward":
            callers.add(f"{'reduction' if 'reduce' in name else 'gather'} in {_called_by_autograd()}")

    x = x.clone().requires_grad_()
    x.register_hook(lambda gradient: reached("behind"))  # the gradient of the input comes last
    with on_collective(seen):
        loss = model(x).sum()
        reached("backward")
        if accumulate:
            loss.backward()
        else:
            torch.autograd.grad(loss, [x, *model.parameters()])
    return started | {"callers": sorted(callers)}


def _called_by_autograd() -> str:
    """What autograd's engine has called on the way here, read off the stack of Python's frames."""
    frames = traceback.extract_stack()
    engine = next((i for i, frame in enumerate(frames) if frame.name == "_engine_run_backward"), len(frames))
    inside = [Path(frame.filename).as_posix() for frame in frames[engine + 1 :] if frame.filename != __file__]
    if not any("/torch/distributed/" in file for file in inside):
        return "C++"
    return "a Function" if inside[0].endswith("torch/autograd/function.py") else "a hook"


@judging(parallel)
def reductions_are_part_of_backward(seen: Seen) -> Result:
    """DDP and FSDP2 in eager reduce while backward still computes gradients, from what they hung on it.

    DDP where a gradient is added to a parameter's, and never where it is only returned; FSDP2 gathers in hooks that
    autograd's engine calls, and reduces behind them.
    """
    eager = {"DDP": seen["ddp"]["eager"], "FSDP2": seen["fsdp"]["eager"]}
    returned = _all(seen["ddp"]["returned"])
    inside = all(row["backward"] > 0 and not row["forward"] for row in eager.values())
    callers = eager["FSDP2"]["callers"] or []
    said = "; ".join(
        f"{name}: {row['forward']} reductions in forward, {row['backward']} within backward, {row['behind']} "
        "behind its last gradient"
        for name, row in eager.items()
    )
    return verdict(
        inside and not returned and "gather in a hook" in callers,
        f"{said}; DDP where gradients are returned and not added up: {returned}; FSDP2: "
        f"{', '.join(callers) or 'nothing in backward'}",
    )


def _all(started: Seen) -> int:
    return started["forward"] + started["backward"] + started["behind"]


@judging(parallel)
def ddp_communicates_in_hooks(seen: Seen) -> Result:
    """DDP reduces where gradients of parameters are added up, and for those that the autograd graph has a path to.

    Compiled, it reduces from outside of the graphs, which hold no collective.
    """
    row = seen["ddp"]
    usual, less, returned = (_all(row[name]) for name in ("eager", "a_layer_less", "returned"))
    hung = row["eager"]["backward"] > 0 and not returned and 0 < less < usual
    return verdict(
        row["right"] and row["collectives_in_backward"] == 0 and hung,
        f"reductions of an eager backward: {usual}, {less} where its graph lacks a layer, {returned} where gradients "
        f"are returned and not added up; compiled: gradients "
        f"{'averaged' if row['right'] else 'not averaged'}, {row['collectives_in_backward']} collectives in the "
        f"backward of {row['graphs']} graph(s)",
    )


@judging(parallel)
def hooks_break_the_graph(seen: Seen) -> Result:
    """One graph of backward becomes several in DDP, cut where its hooks have a bucket to reduce, and under FSDP2.

    DDP's are cut without a break that Dynamo counts, and not at all with the cutting off; FSDP2's is broken, and with
    its layers called without their hooks it is one as well.
    """
    pieces = seen["pieces"]
    said = ", ".join(f"{name} {graphs} (breaks: {breaks})" for name, (graphs, breaks) in pieces.items())
    if not (seen["ddp"]["right_inside"] and seen["fsdp"]["compiled_right"]):
        return cannot_tell("right gradients: without them the hooks did not do their work", said)
    (alone, none), (cut, _), (whole, _), (sharded, broken), unhooked = (
        pieces[name] for name in ("alone", "DDP", "DDP, not cut", "FSDP2", "FSDP2 without its hooks")
    )
    ok = alone == whole == 1 < cut and sharded > 1 and not none and broken > 0 and unhooked == [1, 0]
    return verdict(ok, f"graphs of backward: {said}")


@judging(parallel)
def compiled_regions_work_with_ddp_and_fsdp(seen: Seen) -> Result:
    """Compiled regions work together with DDP and FSDP: the gradients are those of the plain model."""
    ddp, fsdp = seen["ddp"], seen["fsdp"]
    right = ddp["right"] and ddp["right_inside"] and fsdp["compiled_right"]
    ok = right and ddp["graphs"] > 0 and fsdp["graphs"] > 0
    return verdict(
        ok,
        f"gradients right: compiled DDP {ddp['right']} ({ddp['graphs']} graphs), DDP around compiled code "
        f"{ddp['right_inside']}, FSDP2 by layer {fsdp['compiled_right']}",
    )

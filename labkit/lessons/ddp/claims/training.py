"""Data parallel training under the compiler, on two gloo ranks: DDP and FSDP2."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from labkit.graphs import record
from labkit.lessons.shared import reference
from labkit.lessons.shared.capture import Capture, calls
from labkit.lessons.shared.one_step import OneStep, net
from labkit.study.checks import READ, Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, on_collective


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
    with record() as rec:
        right = step(replicated, run)
    found["ddp"] = {
        "right": right,
        "breaks": len(rec.breaks),
        "reasons": sorted(
            {str(reason).rpartition("function marked as skipped: ")[2] for reason in rec.breaks["reason"]}
        ),
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
    with record() as rec:
        found["fsdp"]["compiled_right"] = step(model, model)
    found["fsdp"]["graphs"] = len(graphs.dynamo)
    found["fsdp"]["breaks_inside"] = len(rec.breaks)
    dynamo_reset()
    inner = net()
    inner.compile(backend=Capture(aot=True))
    hooked = DistributedDataParallel(inner)
    with record() as rec:
        found["ddp"]["right_inside"] = step(hooked, hooked)
    found["ddp"]["breaks_inside"] = len(rec.breaks)
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
    return found


def _eager(model: Any, x: torch.Tensor, accumulate: bool = True) -> Seen:
    """How many reductions one step starts in forward, in backward, and after the last gradient of backward.

    `callers` are the functions of FSDP's that autograd's engine has called where a reduction starts in backward.
    """
    phase, started = "forward", {"forward": 0, "backward": 0, "behind": 0}
    callers: set[str] = set()

    def reached(name: str) -> None:
        nonlocal phase
        phase = name

    def seen(name: str, nbytes: int) -> None:
        started[phase] += "reduce" in name
        if "reduce" in name and phase != "forward":
            names = [(Path(frame.filename).as_posix(), frame.name) for frame in traceback.extract_stack()]
            callers.update(
                name for file, name in names if "/distributed/fsdp/" in file and "backward" in name
            )

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


@judging(parallel)
def reductions_are_part_of_backward(seen: Seen) -> Result:
    """DDP and FSDP2 in eager reduce while backward still computes gradients, from what they hung on it.

    DDP where a gradient is added to a parameter's, and never where it is only returned; FSDP2 from functions of its own
    that autograd's engine calls.
    """
    eager = {"DDP": seen["ddp"]["eager"], "FSDP2": seen["fsdp"]["eager"]}
    returned = _all(seen["ddp"]["returned"])
    inside = all(row["backward"] > 0 and not row["forward"] for row in eager.values())
    callers = eager["FSDP2"]["callers"]
    said = "; ".join(
        f"{name}: {row['forward']} reductions in forward, {row['backward']} within backward, {row['behind']} "
        "behind its last gradient"
        for name, row in eager.items()
    )
    return verdict(
        inside and not returned and bool(callers),
        f"{said}; DDP where gradients are returned and not added up: {returned}; FSDP2 reduces from "
        f"{', '.join(callers) or 'nowhere in backward'}",
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
    """DDP and FSDP2 around compiled code, whose gradients their hooks reduce, break its graphs."""
    ddp, fsdp = seen["ddp"], seen["fsdp"]
    said = (
        f"breaks where DDP and FSDP2 wrap compiled code: {ddp['breaks_inside']} and {fsdp['breaks_inside']}; where DDP "
        f"is compiled from outside: {ddp['breaks']} ({'; '.join(ddp['reasons'])})"
    )
    if not (ddp["right_inside"] and fsdp["compiled_right"]):
        return cannot_tell("right gradients: without them the hooks did not do their work", said)
    return verdict(ddp["breaks_inside"] + fsdp["breaks_inside"] > 0, said)


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


@probe
def releases(bench: Bench) -> Seen:
    """Which wheels of older versions of torch have compiled autograd, and the setting that turns it on."""
    return {"wheels": reference.load("compiled_autograd").to_dict("records")}


@judging(releases, word=READ)
def compiled_autograd_since(seen: Seen) -> Result:
    """The first wheel with a setting for compiled autograd is of the claimed version, and the one before has none."""
    wheels = seen["wheels"]
    first = next((i for i, wheel in enumerate(wheels) if wheel["setting"] == "yes"), 0)
    module = next((wheel["torch"] for wheel in wheels if wheel["module"] == "yes"), "none")
    said = f"torch._dynamo.config.compiled_autograd is in the wheel of {wheels[first]['torch']} and not in that of "
    said += f"{wheels[first - 1]['torch']}; the module behind it has been there since {module}"
    return verdict(first > 0 and wheels[first]["torch"].startswith(seen["claimed"] + "."), said)

"""Data parallel training under the compiler, on two gloo ranks: DDP and FSDP2."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from labkit.graphs import record
from labkit.lessons.shared.capture import Capture, calls
from labkit.lessons.shared.one_step import OneStep, net
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset


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
    return found


@judging(parallel)
def ddp_communicates_in_hooks(seen: Seen) -> Result:
    """DDP averages gradients from hooks outside the compiled backward: no collective is in its graphs."""
    row = seen["ddp"]
    return verdict(
        row["right"] and row["collectives_in_backward"] == 0,
        f"gradients {'averaged' if row['right'] else 'not averaged'}, {row['collectives_in_backward']} collectives in "
        f"the backward of {row['graphs']} graph(s)",
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
def ddp_breaks_the_graph(seen: Seen) -> Result:
    """A model under DDP does not compile without graph breaks."""
    row = seen["ddp"]
    return verdict(row["breaks"] > 0, f"{row['breaks']} breaks")


@judging(parallel)
def compiled_regions_work_with_ddp_and_fsdp(seen: Seen) -> Result:
    """Compiled regions work together with DDP and FSDP: the gradients are those of the plain model."""
    ddp, fsdp = seen["ddp"], seen["fsdp"]
    ok = ddp["right"] and fsdp["compiled_right"] and ddp["graphs"] > 0 and fsdp["graphs"] > 0
    return verdict(
        ok,
        f"gradients right: DDP {ddp['right']} ({ddp['graphs']} graphs), FSDP2 by layer {fsdp['compiled_right']}",
    )

"""Sharded training under the compiler, on two gloo ranks: FSDP2 and gathered weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from labkit.lessons.shared.capture import Capture, calls, first_line
from labkit.lessons.shared.one_step import OneStep, net
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import compiled_autograd, ddp_mode, dynamo_reset, funcol


@probe
def sharded(bench: Bench) -> Seen:
    """A training step of a small stack under FSDP2, with gathered weights, and under DDP with compiled autograd."""
    return bench.run(_sharded)[0]


def _sharded() -> Seen:
    one = OneStep()
    mesh, step = one.mesh, one.right
    found: Seen = {}
    model = net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    kinds = {type(p).__name__ for p in model.parameters()}
    placed = {str(p.placements[0]) for p in model.parameters() if isinstance(p, DTensor)}
    found["fsdp"] = {"parameters": sorted(kinds), "placements": sorted(placed), "right": step(model, model)}
    dynamo_reset()
    model, graphs = _gathered(net(), mesh), Capture(aot=True)
    run = torch.compile(model, backend=graphs, fullgraph=True)
    found["gathered"] = {
        "right": step(model, run),
        "gathers": sum("all_gather" in c for g in graphs.forward for c in calls(g)),
        "scatters": sum("reduce_scatter" in c for g in graphs.backward for c in calls(g)),
        "graphs": [len(graphs.forward), len(graphs.backward)],
    }
    dynamo_reset()
    whole = Capture()
    with ddp_mode("python_reducer"):  # the mode of DDP that torch means for compiled autograd
        replicated = DistributedDataParallel(net())
        run = torch.compile(replicated, backend="aot_eager")
        with compiled_autograd(torch.compile(backend=whole, fullgraph=True)):
            right = step(replicated, run)
    weight = torch.ones(4, requires_grad=True)

    def trained(op: str) -> None:
        funcol.all_reduce(weight * one.x[0, :4], op, dist.group.WORLD).sum().backward()

    found["functional"] = {op: _error(trained, op) for op in ("sum", "avg")}
    reduces = [sum("all_reduce" in c for c in calls(graph)) for graph in whole.dynamo]
    found["compiled autograd"] = {"right": right, "reduces": reduces}
    return found | {"by hooks": {name: _by_hooks(one, name) for name in ("DDP", "FSDP2")}}


def _error(function: Any, *arguments: Any) -> str:
    """The first line of what a call raises; empty where it does not."""
    try:
        function(*arguments)
    except Exception as error:
        return first_line(error)
    return ""


def _by_hooks(one: OneStep, name: str) -> list[Any]:
    """A compiled model under DDP or FSDP2 as they are: right, graphs of backward, and collectives in them."""
    dynamo_reset()
    model, graphs = net(), Capture(aot=True)
    for layer in model.layers:
        layer.compile(backend=graphs)
        if name == "FSDP2":
            fully_shard(layer, mesh=one.mesh)
    around: Any = DistributedDataParallel(model) if name == "DDP" else fully_shard(model, mesh=one.mesh)
    right = one.right(around, around)
    return [right, len(graphs.backward), sum("c10d" in c for g in graphs.backward for c in calls(g))]


def _gathered(model: Any, mesh: Any) -> Any:
    """Every parameter sharded, and gathered by a parametrization where it is used: what SimpleFSDP does."""

    class Gather(nn.Module):
        def forward(self, p):
            return p.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])

    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            shard = nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)]))
            module.register_parameter(name, shard)
            parametrize.register_parametrization(module, name, Gather(), unsafe=True)
    return model


@probe
def limits(bench: Bench) -> Seen:
    """What the whole model under DDP and FSDP2 does with fullgraph=True, and a second backward of a compiled region."""
    return bench.run(_limits)[0]


def _limits() -> Seen:
    mesh = init_device_mesh("cpu", (2,))
    x = torch.ones(2, 4) * (1 + dist.get_rank())
    makes: dict[str, Any] = {
        "a plain module": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        "DDP": lambda: DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        "FSDP2": lambda: fully_shard(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), mesh=mesh),
    }
    curve, leaf = lambda y: y.sin().sum(), torch.ones(4, requires_grad=True)
    whole = partial(torch.compile, backend="aot_eager", fullgraph=True)

    def trained(model: Any) -> None:
        model(x).sum().backward()

    def twice(run: Any) -> None:
        (once,) = torch.autograd.grad(run(leaf), leaf, create_graph=True)
        once.sum().backward()

    dynamo_reset()
    second = {"eager": _error(twice, curve), "compiled": _error(twice, whole(curve))}
    found: Seen = {"whole": {}, "eager": {}, "second backward": second}
    for name, make in makes.items():
        dynamo_reset()
        found["eager"][name] = _error(trained, make())
        found["whole"][name] = _error(trained, whole(make()))
    return found


def _refused(seen: Seen) -> list[str]:
    """Which of DDP and FSDP2 Dynamo refuses to trace whole; none where eager fails, or a plain module."""
    whole = seen["whole"]
    if whole["a plain module"] or any(seen["eager"].values()):
        return []
    return [name for name in ("DDP", "FSDP2") if whole[name].startswith("Unsupported")]


@judging(limits)
def each_combination_has_limits(seen: Seen) -> Result:
    """Compiled code has a limit with each: no second backward by autograd, and no whole model under DDP or FSDP2."""
    whole, second = seen["whole"], seen["second backward"]
    limits = {
        "autograd, a second backward": second["compiled"],
        "DDP, the whole model": whole["DDP"],
        "FSDP2": whole["FSDP2"],
    }
    once = "double backward" in second["compiled"] and not second["eager"]
    said = "; ".join(f"{name}: {error or 'works'}" for name, error in limits.items())
    return verdict(once and len(_refused(seen)) == 2, f"{said}; in eager {_in_eager(seen)}")


def _in_eager(seen: Seen) -> str:
    failed = [error for error in (*seen["eager"].values(), seen["second backward"]["eager"]) if error]
    return "; ".join(failed) or "all of it works"


@judging(limits)
def frameworks_are_not_traced_whole(seen: Seen) -> Result:
    """A model that is traced whole on its own is not under at least one of torch's own frameworks, DDP and FSDP2."""
    whole, failed = seen["whole"], _refused(seen)
    said = f"with fullgraph=True: a plain module {'fails' if whole['a plain module'] else 'compiles'}"
    return verdict(
        bool(failed),
        f"{said}, Dynamo refuses {' and '.join(failed) or 'neither'}; in eager {_in_eager(seen)}",
    )


NONE = "no error"


@judging(sharded)
def training_needs_another_road(seen: Seen) -> Result:
    """A functional mean refuses its backward, and a sum does not; the average over the ranks of the gradients of each
    one's loss is right by DTensors and by compiled autograd."""
    refused, right = seen["functional"]["avg"], {"DTensor": seen["gathered"]["right"]}
    right["compiled autograd"] = seen["compiled autograd"]["right"]
    said = "; ".join(f"{name}: {'right' if ok else 'wrong'}" for name, ok in right.items())
    return verdict(
        bool(refused) and not seen["functional"]["sum"] and all(right.values()),
        f"backward of a functional mean: {refused or NONE}, of a sum: {seen['functional']['sum'] or NONE}; "
        f"gradients averaged over the ranks by {said}",
    )


@judging(sharded)
def fsdp2_is_dtensor(seen: Seen) -> Result:
    """Parameters under FSDP2 are DTensors, sharded on their first dimension."""
    row = seen["fsdp"]
    return verdict(
        row["parameters"] == ["DTensor"] and all("(0" in p or p.startswith("S(0") for p in row["placements"]),
        f"parameters {', '.join(row['parameters'])}, placed {', '.join(row['placements'])}",
    )


@judging(sharded)
def both_paths_bring_communication_into_graphs(seen: Seen) -> Result:
    """Compiled autograd has DDP's reductions in one graph of backward, and parameters as DTensors FSDP's in theirs.

    Where DDP and FSDP2 reduce from their hooks, compiled code has none of it.
    """
    ddp, fsdp = seen["compiled autograd"], seen["gathered"]
    captured = ddp["right"] and len(ddp["reduces"]) == 1 and ddp["reduces"][0] > 0
    traced = fsdp["right"] and fsdp["graphs"] == [1, 1] and fsdp["scatters"] > 0
    hooks = seen["by hooks"]
    outside = all(right and graphs and not inside for right, graphs, inside in hooks.values())
    said = ", ".join(f"{name} {inside} in {graphs}" for name, (_, graphs, inside) in hooks.items())
    return verdict(
        captured and traced and outside,
        f"compiled autograd over DDP: all-reduces by graph of backward {ddp['reduces']}, right: {ddp['right']}; FSDP "
        f"on DTensors, traced whole: {fsdp['scatters']} reduce-scatters in backward, right: {fsdp['right']}; "
        f"by hooks, collectives in graphs of backward: {said}",
    )

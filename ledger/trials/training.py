"""Data parallel training under the compiler: DDP, FSDP2, compiled autograd."""

from __future__ import annotations

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import compiled_autograd, trace_rules
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from ledger.bench import Bench
from ledger.graphs import Graphs, calls, first_line
from ledger.trial import Seen, judge, part

DDP = DistributedDataParallel
LAYERS = 4


class Layer(nn.Module):
    """A module that is not torch's own: Dynamo compiles its forward also where a hook's break makes it a frame."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


class Stack(nn.Module):
    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, norm) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def stack(width: int = 64, norm: bool = False) -> Stack:
    torch.manual_seed(0)
    return Stack(width, norm)


def sequential(width: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def batch(rank: int | None = None, width: int = 64) -> torch.Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(8, width, generator=torch.Generator().manual_seed(rank))


def shard(model: Stack, layers: bool = True) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers if layers else ():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gradients(model: nn.Module) -> torch.Tensor:
    found = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten() for grad in found])


def error(model: nn.Module, width: int = 64) -> float:
    """How far gradients are from those of one process over the batches of all ranks, relative to the largest."""
    alone, size = stack(width), dist.get_world_size()
    sum(alone(batch(rank, width)).sum() for rank in range(size)).backward()
    right = gradients(alone) / size
    return float((gradients(model) - right).abs().max() / right.abs().max())


@contextlib.contextmanager
def optimize_ddp(mode: str):
    """Build and compile DDP in this mode. The Python reducer changes two more settings, which are set back here."""
    kept = set(trace_rules.LEGACY_MOD_INLINELIST)
    settings = {"_fuse_ddp_communication": False, "_fuse_ddp_bucket_size": 25}
    try:
        with torch._dynamo.config.patch(optimize_ddp=mode), torch._inductor.config.patch(settings):
            yield
    finally:
        trace_rules.LEGACY_MOD_INLINELIST.intersection_update(kept)
        trace_rules.get_legacy_mod_inlinelist.cache_clear()


# --- what starts in backward ---


class Collectives(TorchDispatchMode):
    """Write down each collective as it is dispatched."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = func.name()
        if "c10d" in name:
            for kind in ("reduce_scatter", "allreduce", "allgather"):
                if kind in name.replace("all_reduce", "allreduce"):
                    self.log.append(kind)
        return func(*args, **(kwargs or {}))


def step_of(name: str, accumulate: bool) -> list[str]:
    """What an eager step does in order: collectives, the end of forward, the gradient of each layer's input."""
    model, log = stack(), []
    if name.startswith("DDP"):
        # a bucket for about a layer, from the second step on
        run = DDP(model, bucket_cap_mb=0.02 if "many" in name else 25)
    else:
        run = shard(model, layers="many" in name)

    def mark(i: int):
        def hook(module, inputs):
            if inputs[0].requires_grad:
                inputs[0].register_hook(lambda grad: log.append(f"gradient {i}"))

        return hook

    for i, layer in enumerate(model.layers):
        layer.linear.register_forward_pre_hook(mark(i))
    x = batch().requires_grad_()
    for _ in range(2):
        run(x).sum().backward()
    log.clear()
    with Collectives(log):
        loss = run(x).sum()
        log.append("backward")
        if accumulate:
            loss.backward()
        else:
            torch.autograd.grad(loss, list(run.parameters()))
    return log


def steps(names: list[str], accumulate: bool = True) -> Seen:
    return {"logs": {name: step_of(name, accumulate) for name in names}}


def many_buckets(bench: Bench) -> Seen:
    return bench.run(steps, ["DDP, many buckets", "FSDP2, many units"])[0]


def one_bucket(bench: Bench) -> Seen:
    return bench.run(steps, ["DDP, one bucket", "FSDP2, one unit"])[0]


def reductions(log: list[str]) -> dict[str, int]:
    """How many reductions start in forward, in backward before the input's gradient, and after it."""
    start, last = log.index("backward"), log.index("gradient 0")
    reduces = [i for i, name in enumerate(log) if name in ("allreduce", "reduce_scatter")]
    if not reduces:
        raise ValueError(f"the reader does not find a reduction: {log}")
    return {
        "in forward": sum(i < start for i in reduces),
        "before the last gradient": sum(start < i < last for i in reduces),
        "after it": sum(i > last for i in reduces),
    }


@judge(many_buckets, counter=one_bucket)
def reductions_in_backward(seen):
    for name, words in (("DDP", "DDP with several buckets"), ("FSDP2", "FSDP2 with several units")):
        counts = reductions(next(log for key, log in seen["logs"].items() if key.startswith(name)))
        said = ", ".join(f"{count} {when}" for when, count in counts.items())
        yield part(words, counts["before the last gradient"] and not counts["in forward"], f"{name}: {said}")


def returned_gradients(bench: Bench) -> Seen:
    return bench.run(steps, ["DDP, many buckets"], False)[0]


def accumulated_gradients(bench: Bench) -> Seen:
    return bench.run(steps, ["DDP, many buckets"], True)[0]


def with_control(probe):
    def both(bench: Bench) -> Seen:
        (control,) = accumulated_gradients(bench)["logs"].values()
        return {**probe(bench), "control": control}

    return both


@judge(with_control(returned_gradients), counter=with_control(accumulated_gradients))
def autograd_grad_reduces_nothing(seen):
    usual = seen["control"].count("allreduce")
    if not usual:
        raise ValueError("the reader does not find the all_reduce of an ordinary backward")
    (log,) = seen["logs"].values()
    count = log.count("allreduce")
    yield part("starts no all_reduce", not count, f"{count} with autograd.grad, {usual} with backward()")


# --- FSDP2's all-gathers in an eager forward ---


def forward_of(prefetch: bool) -> Seen:
    model, log = stack(), []
    run = shard(model)
    if prefetch:
        for layer, following in zip(model.layers, list(model.layers)[1:], strict=False):
            layer.set_modules_to_forward_prefetch([following])
    for i, layer in enumerate(model.layers):
        layer.linear.register_forward_hook(lambda *_, i=i: log.append(f"forward {i}"))
    run(batch()).sum().backward()
    log.clear()
    with Collectives(log):
        run(batch())
    return {"log": log}


def prefetched(bench: Bench) -> Seen:
    return bench.run(forward_of, True)[0]


def not_prefetched(bench: Bench) -> Seen:
    return bench.run(forward_of, False)[0]


@judge(prefetched, counter=not_prefetched)
def forward_prefetch(seen):
    log = seen["log"]
    if log.count("allgather") != LAYERS or sum(name.startswith("forward") for name in log) != LAYERS:
        raise ValueError(f"the reader does not find {LAYERS} gathers and {LAYERS} forwards: {log}")
    early = [log[: log.index(f"forward {i}")].count("allgather") > i + 1 for i in range(LAYERS - 1)]
    yield part("starts the next block's all-gather before the forward of a block", all(early), ", ".join(log))


# --- graphs of DDP and FSDP2 ---


def compiled_step(way: str, mode: str = "ddp_optimizer", width: int = 64, fullgraph: bool = False) -> Seen:
    """One step of a compiled model: graphs, what Dynamo raised, and the error of the gradients."""
    backend, x = Graphs(aot=True), batch(width=width)
    with optimize_ddp(mode):
        model = stack(width)

        def compiled(module):
            return torch.compile(module, backend=backend, fullgraph=fullgraph)

        if way == "compile(DDP)":
            run = compiled(DDP(model, bucket_cap_mb=2))
        elif way == "DDP(compile)":
            run = DDP(compiled(model), bucket_cap_mb=2)
        elif way == "compile(FSDP2)":
            run = compiled(shard(model))
        elif way == "compile(FSDP2), hooks not called":
            shard(model)
            for layer in model.layers:
                layer.unshard()  # what its hook does

            def forwards(inputs):
                for layer in model.layers:
                    inputs = layer.forward(inputs)
                return inputs

            run = compiled(forwards)
        elif way == "FSDP2, each layer":
            run = shard(model)
            for layer in model.layers:
                layer.compile(backend=backend, fullgraph=fullgraph)
        elif way == "FSDP2, each layer with a break":
            run = shard(model)
            for layer in model.layers:
                layer.linear.register_forward_hook(lambda *_: torch._dynamo.graph_break())
                layer.compile(backend=backend, fullgraph=fullgraph)
        try:
            run(x).sum().backward()
        except Exception as raised:
            return {"raised": first_line(raised), "backward": 0, "forward": 0, "error": None}
    return {
        "raised": "",
        "forward": len(backend.forward),
        "backward": len(backend.backward),
        "error": None if "hooks" in way else error(model, width),
    }


def compiled_as(*arguments):
    def probe(bench: Bench) -> Seen:
        return bench.run(compiled_step, *arguments)[0]

    return probe


WIDE = 640  # two layers of this width fill a bucket


def pieces(mode: str):
    def probe(bench: Bench) -> Seen:
        return bench.run(compiled_step, "compile(DDP)", mode, WIDE)[0]

    return probe


SPLIT = pieces("ddp_optimizer")


@judge(SPLIT, counter=pieces("no_optimization"))
def ddp_optimizer_splits(seen):
    yield part("into several graphs", seen["backward"] > 1, f"{seen['backward']} graphs of backward")


def exact(seen: Seen) -> bool:
    return seen["error"] is not None and seen["error"] < 1e-5


def off(seen: Seen) -> str:
    return "no gradients" if seen["error"] is None else f"relative error of the gradients {seen['error']:.1g}"


def no_average(bench: Bench) -> Seen:
    """The same model without DDP: its gradients are those of the rank's own batch."""
    return bench.run(alone_step)[0]


def alone_step() -> Seen:
    backend, model = Graphs(aot=True), stack(WIDE)
    torch.compile(model, backend=backend)(batch(width=WIDE)).sum().backward()
    return {"raised": "", "forward": len(backend.forward), "backward": 1, "error": error(model, WIDE)}


@judge(SPLIT, counter=no_average)
def compiled_ddp_gradients(seen):
    if not seen["forward"]:
        raise ValueError("nothing was compiled")
    yield part("the gradients of one process", exact(seen), f"{seen['forward']} graphs; {off(seen)}")


def whole_graph(way: str):
    return compiled_as(way, "ddp_optimizer", 64, True)


def refused(raised: str) -> tuple[bool, str]:
    """Whether Dynamo refuses; any other exception tells nothing."""
    if raised and not raised.startswith("Unsupported") and "fullgraph" not in raised:
        raise ValueError(f"another exception than Dynamo's: {raised}")
    return bool(raised), raised or "no error"


@judge(whole_graph("compile(DDP)"), counter=whole_graph("DDP(compile)"))
def ddp_refuses_fullgraph(seen):
    yield part("raises torch._dynamo.exc.Unsupported", *refused(seen["raised"]))


@judge(whole_graph("compile(FSDP2)"), counter=whole_graph("compile(FSDP2), hooks not called"))
def fsdp2_hooks_break(seen):
    yield part("raises torch._dynamo.exc.Unsupported", *refused(seen["raised"]))


@judge(
    whole_graph("FSDP2, each layer"),
    counter=whole_graph("FSDP2, each layer with a break"),
)
def fsdp2_layers_compile_whole(seen):
    said = seen["raised"] or f"{seen['forward']} graphs of forward; {off(seen)}"
    yield part("each block compiles with fullgraph=True", seen["forward"], said)
    yield part("the gradients are those of one process", exact(seen), said)


def sequential_step(way: str, fullgraph: bool) -> Seen:
    """How many graphs the wrapped model compiles, and what is raised."""
    torch._dynamo.reset()
    backend, mesh = Graphs(), init_device_mesh("cpu", (dist.get_world_size(),))
    if way == "compile(DDP(nn.Sequential))":
        run = torch.compile(DDP(sequential()), backend=backend, fullgraph=fullgraph)
    elif way == "compile(DDP(own class))":
        run = torch.compile(DDP(stack()), backend=backend, fullgraph=fullgraph)
    else:
        blocks = [sequential() if "Sequential" in way else Layer(64, False) for _ in range(2)]
        for block in blocks:
            block.compile(backend=backend, fullgraph=fullgraph)
            fully_shard(block, mesh=mesh)
        run = fully_shard(nn.Sequential(*blocks), mesh=mesh)
    try:
        run(batch()).sum().backward()
    except Exception as raised:
        return {"graphs": len(backend.dynamo), "raised": first_line(raised)}
    return {"graphs": len(backend.dynamo), "raised": ""}


def wrapped(way: str, fullgraph: bool = False):
    def probe(bench: Bench) -> Seen:
        return bench.run(sequential_step, way, fullgraph)[0]

    return probe


def nothing(seen: Seen) -> tuple[bool, str]:
    return not seen["graphs"] and not seen["raised"], seen["raised"] or f"{seen['graphs']} graphs"


@judge(wrapped("compile(DDP(nn.Sequential))"), counter=wrapped("compile(DDP(own class))"))
def ddp_sequential_compiles_nothing(seen):
    yield part("compiles no graph and raises nothing", *nothing(seen))


@judge(wrapped("FSDP2, nn.Sequential blocks"), counter=wrapped("FSDP2, blocks of an own class"))
def fsdp2_sequential_compiles_nothing(seen):
    yield part("compiles no graph with block.compile(), and nothing is raised", *nothing(seen))


@judge(wrapped("FSDP2, nn.Sequential blocks", True), counter=wrapped("FSDP2, blocks of an own class", True))
def fsdp2_sequential_fullgraph_raises(seen):
    yield part("raises an error", *refused(seen["raised"]))


# --- compiled autograd ---


@torch.compiler.disable
def hidden(x):
    return x * 2


def broken(x):
    return hidden(hidden(x.sin()).sin()).sin().sum()


def whole(x):
    return (x.sin() * 2).sin().sin().sum()


def backward_graphs(with_breaks: bool, compiled: bool) -> Seen:
    """Graphs of the backward of a compiled forward, by AOTAutograd or by compiled autograd."""
    program = broken if with_breaks else whole
    x = torch.ones(4, requires_grad=True)
    forward = Graphs(aot=True)
    run, captured = torch.compile(program, backend=forward), []
    if compiled:

        def keep(graph, inputs):
            captured.append(graph)
            return graph.forward

        with compiled_autograd._enable(torch.compile(backend=keep, fullgraph=True)):
            loss = run(x)
            before = len(captured)
            loss.backward()
    else:
        before = len(forward.backward)
        run(x).backward()
        captured = forward.backward
    return {
        "forward": len(forward.forward),
        "backward": len(captured),
        "before": before,
    }


def captured_backward(compiled: bool):
    def probe(bench: Bench) -> Seen:
        return bench.run(backward_graphs, True, compiled, ranks=1)[0]

    return probe


@judge(captured_backward(True), counter=captured_backward(False))
def compiled_autograd_whole(seen):
    if seen["forward"] < 2:
        raise ValueError(f"the forward has {seen['forward']} graphs: it was to be cut")
    said = f"{seen['forward']} graphs of forward, {seen['backward']} of backward, {seen['before']} before it runs"
    yield part("as one graph", seen["backward"] == 1, said)
    yield part("while it runs", not seen["before"], said)


def ddp_captured(mode: str, compiled: bool) -> Seen:
    """A step of DDP in a mode, its backward by compiled autograd: all_reduces in its graphs, error of the gradients."""
    torch._dynamo.reset()
    kept = Graphs()
    with optimize_ddp(mode):
        model = stack()
        run = torch.compile(DDP(model), backend="aot_eager")
        capture = compiled_autograd._enable(torch.compile(backend=kept, fullgraph=True))
        try:
            with capture if compiled else contextlib.nullcontext():
                run(batch()).sum().backward()
        except Exception as raised:
            return {"raised": first_line(raised), "reduces": [], "error": None}
    reduces = [sum("all_reduce" in name for name in calls(graph)) for graph in kept.dynamo]
    return {"raised": "", "reduces": reduces, "error": error(model)}


def captured_ddp(mode: str, compiled: bool = True):
    def probe(bench: Bench) -> Seen:
        return bench.run(ddp_captured, mode, compiled)[0]

    return probe


@judge(captured_ddp("python_reducer"), counter=captured_ddp("python_reducer", False))
def python_reducer_in_the_graph(seen):
    reduces = seen["reduces"]
    said = seen["raised"] or f"all_reduces by graph of backward: {reduces}; {off(seen)}"
    one = len(reduces) == 1 and reduces[0] == 2 * LAYERS
    yield part("one graph of backward with an all_reduce for each parameter", one, said)
    yield part("the gradients are those of one process", exact(seen), said)


@judge(captured_ddp("ddp_optimizer"), counter=captured_ddp("python_reducer"))
def compiled_autograd_refuses_the_reducer(seen):
    yield part(
        "raises a RuntimeError", seen["raised"].startswith("RuntimeError"), seen["raised"] or "no error"
    )


def buffers_of(mode: str) -> Seen:
    """Two steps of a model with BatchNorm under DDP, and the same two without DDP: this rank's running means."""
    torch._dynamo.reset()
    with optimize_ddp(mode):
        model = stack(norm=True)
        alone = copy.deepcopy(model)
        run = torch.compile(DDP(model), backend="aot_eager")
        for _ in range(2):
            run(batch()).sum().backward()
            alone(batch()).sum().backward()

    def means(one):
        return torch.cat([v.flatten() for name, v in one.named_buffers() if "running" in name])

    first = [torch.empty_like(means(alone)) for _ in range(dist.get_world_size())]
    dist.all_gather(first, means(alone))
    return {
        "own": bool(torch.allclose(means(model), means(alone))),
        "ranks_differ": bool(not torch.allclose(first[0], first[1])),
    }


def buffers(mode: str):
    def probe(bench: Bench) -> Seen:
        found = bench.run(buffers_of, mode)[1]
        if not found["ranks_differ"]:
            raise ValueError("the ranks have the same statistics: nothing can be told")
        return found

    return probe


@judge(buffers("python_reducer"), counter=buffers("ddp_optimizer"))
def python_reducer_keeps_buffers(seen):
    yield part("are not broadcast", seen["own"], f"rank 1 has its own statistics: {seen['own']}")


# --- FSDP with sharded parameters that are gathered in the graph ---


class Gather(nn.Module):
    def forward(self, parameter):
        return parameter.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])


def traced_step(gathered: bool) -> Seen:
    """A step of parameters that a parametrization gathers where they are used, or of FSDP2's, each layer compiled."""
    backend, model = Graphs(aot=True), stack()
    if gathered:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for module in list(model.modules()):
            for name, parameter in list(module.named_parameters(recurse=False)):
                sharded = nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)]))
                module.register_parameter(name, sharded)
                parametrize.register_parametrization(module, name, Gather(), unsafe=True)
        run = torch.compile(model, backend=backend, fullgraph=True)
    else:
        run = shard(model)
        for layer in model.layers:
            layer.compile(backend=backend)
    run(batch()).sum().backward()
    count = {
        name: sum(name in call for graph in graphs for call in calls(graph))
        for name, graphs in (("all_gather", backend.forward), ("reduce_scatter", backend.backward))
    }
    return {"graphs": [len(backend.forward), len(backend.backward)], **count, "error": error(model)}


def traced(gathered: bool):
    def probe(bench: Bench) -> Seen:
        return bench.run(traced_step, gathered)[0]

    return probe


@judge(traced(True), counter=traced(False))
def gathered_parameters_are_traced(seen):
    said = (
        f"graphs {seen['graphs']}, {seen['all_gather']} all-gathers in forward, "
        f"{seen['reduce_scatter']} reduce-scatters in backward; {off(seen)}"
    )
    each = seen["all_gather"] == seen["reduce_scatter"] == 2 * LAYERS
    yield part("compiles as one graph", seen["graphs"] == [1, 1], said)
    yield part("an all-gather and a reduce-scatter for each parameter", each, said)
    yield part("the gradients are those of one process", exact(seen), said)


def parameters_of(way: str) -> Seen:
    model = stack()
    if way == "FSDP2":
        shard(model)
    else:
        DDP(model)
    kinds = sorted({type(p).__name__ for p in model.parameters()})
    placed = [p.placements for p in model.parameters() if isinstance(p, DTensor)]
    return {"kinds": kinds, "on_dimension_0": bool(placed) and all(one == (Shard(0),) for one in placed)}


def parameters(way: str):
    def probe(bench: Bench) -> Seen:
        return bench.run(parameters_of, way)[0]

    return probe


@judge(parameters("FSDP2"), counter=parameters("DDP"))
def fsdp2_parameters_are_dtensors(seen):
    said = f"{', '.join(seen['kinds'])}, sharded on dimension 0: {seen['on_dimension_0']}"
    yield part(
        "DTensors sharded on dimension 0", seen["kinds"] == ["DTensor"] and seen["on_dimension_0"], said
    )


def second_backward(compiled: bool) -> Seen:
    def curve(y):
        return y.sin().sum()

    torch._dynamo.reset()
    run = torch.compile(curve, backend="aot_eager", fullgraph=True) if compiled else curve
    leaf = torch.ones(4, requires_grad=True)
    (once,) = torch.autograd.grad(run(leaf), leaf, create_graph=True)
    try:
        once.sum().backward()
    except RuntimeError as raised:
        return {"raised": first_line(raised)}
    return {"raised": ""}


def double(compiled: bool):
    def probe(bench: Bench) -> Seen:
        return bench.run(second_backward, compiled, ranks=1)[0]

    return probe


@judge(double(True), counter=double(False))
def no_double_backward(seen):
    yield part("raises a RuntimeError", "double backward" in seen["raised"], seen["raised"] or "no error")

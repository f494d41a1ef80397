"""What the experiment runs on a rank: build the routes, check them, compile, count, time in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course.shared.variants import with_own_code
from labkit import torch_compat
from labkit.graphs import record
from labkit.ranks import here
from labkit.timing import interleave
from labkit.torch_compat import dtensor_cache, forget_dtensor_rules, on_collective

Case = tuple[str, str, int, int]  # kind, size, dim, tokens
HEADS = 4


def whole_of(program: Any, kind: str, dim: int) -> Any:
    """The whole module of a kind of layer, 'mlp' or 'block', with its seeded weights."""
    return program.seeded(*((program.Block, dim, HEADS) if kind == "block" else (program.MLP, dim)))


def measure(program: Any, cases: list[Case], rounds: int, talk: bool) -> dict[str, Any]:
    """On every rank: errors and counts of each route and mode, and samples in seconds."""
    me, mesh = here(), _mesh()
    found: dict[str, Any] = {"samples": {}, "counts": {}}
    with torch.no_grad():
        for kind, size, dim, tokens in cases:
            whole, x = whole_of(program, kind, dim).to(me.device), program.sample(dim, tokens, me.device)
            expected = whole(x)
            counts = found["counts"][kind, size] = {}
            calls: dict[str, Callable[[], Any]] = {}
            for way, forward in _ways(program.ROUTES, whole, mesh).items():
                error = float((forward(x) - expected).abs().max())
                calls[way] = _settled(forward, x)
                calls[way]()
                counts[way] = {"error": error}
                if talk and me.rank == 0:
                    print(f"{kind}, {size}: {way}", flush=True)
            for way, call in calls.items():
                dist.barrier()
                with record() as rec:
                    for _ in range(2):
                        with rec.forward():
                            call()
                row = rec.counts().iloc[0]
                counts[way] |= {name: float(row[name]) for name in ("regions", "breaks", "collectives")}
            taken = interleave(calls, rounds=rounds, warmup=2, barrier=dist.barrier)
            found["samples"][kind, size] = {way: list(m.samples) for way, m in taken.items()}
    return found


def alone(program: Any, cases: list[Case], rounds: int) -> dict[str, Any]:
    """On one rank of a fake group: host time of each route, and what is dispatched.

    Compiled routes are looked at and timed for the first case of each kind only: what a compile takes, it takes here
    again, and the graphs of other sizes differ in their sizes.
    """
    mesh, kinds = _mesh(), set()
    found: dict[str, Any] = {"samples": {}, "eager": [], "graphs": []}
    with torch.no_grad():
        for kind, size, dim, tokens in cases:
            whole, x = whole_of(program, kind, dim), program.sample(dim, tokens)
            first = kind not in kinds
            kinds.add(kind)
            ways = _ways(program.ROUTES, whole, mesh, compiled=first)
            for route, make in program.ROUTES.items():
                one = {"kind": kind, "size": size, "route": route}
                forget_dtensor_rules()
                forward = ways[f"{route} eager"]
                before = dtensor_cache()
                forward(x)
                worked_out = dtensor_cache()[1] - before[1]
                found["eager"].append(one | {"worked_out": worked_out} | heard(forward, x))
                if first:
                    found["graphs"].append(one | _graph(make, whole, mesh, x))
            calls = {way: _settled(forward, x) for way, forward in ways.items()}
            taken = interleave(calls, rounds=rounds, warmup=2)
            found["samples"][kind, size] = {way: list(m.samples) for way, m in taken.items()}
    return found


def heard(forward: Callable[..., Any], *args: Any) -> dict[str, int]:
    """One call's collectives, the bytes that go into them, and DTensor's operations, by its own count of rules."""
    sizes: list[int] = []
    before = sum(dtensor_cache())
    with on_collective(lambda _, n: sizes.append(n)):
        y = forward(*args)
    dispatched = sum(dtensor_cache()) - before
    del y
    return {"collectives": len(sizes), "bytes": sum(sizes), "dispatched": dispatched}


def _mesh() -> Any:
    me = here()
    return init_device_mesh(torch.device(me.device).type, (me.world_size,), mesh_dim_names=("tp",))


def _ways(routes: Any, whole: Any, mesh: Any, compiled: bool = True) -> dict[str, Callable[..., Any]]:
    ways: dict[str, Callable[..., Any]] = {}
    for mode in ("eager", "compiled") if compiled else ("eager",):
        for route, make in routes.items():
            model = with_own_code(make(whole, mesh))
            forward = torch.compile(model, fullgraph=True, dynamic=False) if mode == "compiled" else model
            ways[f"{route} {mode}"] = forward
    return ways


def _settled(forward: Callable[..., Any], x: Any) -> Callable[[], Any]:
    def call() -> Any:
        y = forward(x)
        if y.is_cuda:
            torch.cuda.synchronize()
        else:
            y[0, 0, 0].item()  # an eager functional result may be in flight: one element makes it arrive
        return y

    return call


def _graph(make: Any, whole: Any, mesh: Any, x: Any) -> dict[str, Any]:
    """What a route's graph holds after AOTAutograd: one row, with the collectives by name and bytes into them."""
    graphs: list[Any] = []
    model = with_own_code(make(whole, mesh))
    backend = torch_compat.aot_backend(graphs, [])
    torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(x)
    nodes = [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    talk = [n for n in nodes if "_c10d_functional" in str(n.target) and "wait" not in str(n.target)]
    values = [node.args[0].meta["val"] for node in talk]
    return {
        "graphs": len(graphs), "operations": len(nodes), "collectives": len(talk),
        "bytes": sum(value.numel() * value.element_size() for value in values),
        "names": ", ".join(str(node.target).split(".")[1] for node in talk),
    }  # fmt: skip

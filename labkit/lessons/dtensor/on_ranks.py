"""What the experiment runs on a rank: build the routes, check them, compile, count, time in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from labkit import lessons, torch_compat
from labkit.graphs import record
from labkit.lessons.dtensor import routes
from labkit.lessons.shared.variants import with_own_code
from labkit.ranks import here
from labkit.timing import interleave
from labkit.torch_compat import around_dtensor, dtensor_cache, forget_dtensor_rules, funcol, on_collective

cliff = lessons.program("cliff")
Case = tuple[str, str, int, int]  # kind, size, dim, tokens
CALLS = 40  # calls a sample of one part: a call takes microseconds
PART_ROUNDS = 12


def measure(cases: list[Case], rounds: int, talk: bool) -> dict[str, Any]:
    """On every rank: errors and counts of each route and mode, and samples in seconds."""
    me, mesh = here(), _mesh()
    found: dict[str, Any] = {"samples": {}, "counts": {}}
    with torch.no_grad():
        for case in cases:
            kind, size, dim, tokens = case
            config = cliff.Config(dim=dim, heads=4, blocks=1, tokens=tokens)
            x = config.sample(device=me.device)
            expected = routes.whole(config, kind)(config.sample()).to(me.device)
            ways = _ways(config, kind, mesh)
            counts = found["counts"][kind, size] = {}
            calls: dict[str, Callable[[], Any]] = {}
            for way, forward in ways.items():
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


def alone(cases: list[Case], rounds: int) -> dict[str, Any]:
    """On one rank of a fake group: host time of each route, what is dispatched, and what DTensor's parts cost alone.

    Compiled routes are looked at and timed for the first case of each kind only: what a compile takes, it takes here
    again, and the graphs of other sizes differ in their sizes.
    """
    mesh, kinds = _mesh(), set()
    found: dict[str, Any] = {"samples": {}, "eager": [], "graphs": [], "spent": []}
    with torch.no_grad():
        for case in cases:
            kind, size, dim, tokens = case
            config = cliff.Config(dim=dim, heads=4, blocks=1, tokens=tokens)
            x = config.sample()
            first = kind not in kinds
            kinds.add(kind)
            ways = _ways(config, kind, mesh, compiled=first)
            who = [{"kind": kind, "size": size, "route": route} for route in routes.ROUTES]
            for one in who:
                forget_dtensor_rules()
                forward = ways[f"{one['route']} eager"]
                before = dtensor_cache()
                forward(x)
                worked_out = dtensor_cache()[1] - before[1]
                found["eager"].append(one | {"worked_out": worked_out} | heard(forward, x))
                if first:
                    found["graphs"].append(one | _graph(config, kind, mesh, one["route"], x))
            for _ in range(rounds):
                found["spent"] += [one | spent(ways[f"{one['route']} eager"], x) for one in who]
            calls = {way: _settled(forward, x) for way, forward in ways.items()}
            taken = interleave(calls, rounds=rounds, warmup=2)
            found["samples"][kind, size] = {way: list(m.samples) for way, m in taken.items()}
        found["parts"] = _parts(mesh)
    return found


def heard(forward: Callable[..., Any], *args: Any) -> dict[str, int]:
    """One call's collectives with the bytes that go into them, DTensor operations, wraps and redistributions.

    Operations are told by DTensor's own count of rules found; wraps are calls of from_local.
    """
    sizes: list[int] = []
    wraps, plain, before = [0], DTensor.from_local, sum(dtensor_cache())

    def from_local(*given: Any, **more: Any) -> Any:
        wraps[0] += 1
        return plain(*given, **more)

    with mock.patch.object(DTensor, "from_local", from_local), on_collective(lambda _, n: sizes.append(n)):
        y = forward(*args)
    dispatched = sum(dtensor_cache()) - before
    del y
    return {"collectives": len(sizes), "bytes": sum(sizes), "dispatched": dispatched, "wraps": wraps[0]}


def spent(forward: Callable[..., Any], x: Any) -> dict[str, float]:
    """Seconds of one call inside the functional all-reduce, redistributing, and wrapping, each without the others.

    `rest` is what remains: the operations themselves, with what DTensor does around each of them.
    """
    taken = {"sums": 0.0, "redistribute": 0.0, "wrap": 0.0, "rest": 0.0}
    open_now = ["rest"]
    last = [0.0]

    def turn(to: str | None) -> None:
        now = time.perf_counter()
        taken[open_now[-1]] += now - last[0]
        last[0] = now
        open_now.append(to) if to else open_now.pop()

    with around_dtensor(turn):
        last[0] = time.perf_counter()
        y = forward(x)
        y[0, 0, 0].item()
        turn("rest")
    return taken


def _mesh() -> Any:
    me = here()
    return init_device_mesh(torch.device(me.device).type, (me.world_size,), mesh_dim_names=("tp",))


def _ways(config: Any, kind: str, mesh: Any, compiled: bool = True) -> dict[str, Callable[..., Any]]:
    ways: dict[str, Callable[..., Any]] = {}
    for mode in ("eager", "compiled") if compiled else ("eager",):
        for route in routes.ROUTES:
            model = with_own_code(routes.build(route, config, kind, mesh))
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


def _graph(config: Any, kind: str, mesh: Any, route: str, x: Any) -> dict[str, Any]:
    """What a route's graph holds after AOTAutograd: one row, with the collectives by name and bytes into them."""
    graphs: list[Any] = []
    model = with_own_code(routes.build(route, config, kind, mesh))
    backend = torch_compat.aot_backend(graphs, [])
    torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(x)
    names, total, operations = [], 0, 0
    for graph in graphs:
        for node in graph.graph.nodes:
            if node.op != "call_function":
                continue
            operations += 1
            target = str(node.target)
            if "_c10d_functional" in target and "wait" not in target:
                value = node.args[0].meta["val"]
                names.append(target.split(".")[1])
                total += value.numel() * value.element_size()
    return {
        "graphs": len(graphs), "operations": operations,
        "collectives": len(names), "bytes": total, "names": ", ".join(names),
    }  # fmt: skip


def _parts(mesh: Any) -> list[tuple[str, int, float]]:
    """What one small addition costs as it is and as a DTensor, and what wrapping and redistributing cost: seconds."""
    x = torch.zeros(4, 64)
    whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    summand = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    everyone: Any = dist.group.WORLD

    def first_of_its_kind() -> Any:
        forget_dtensor_rules()
        return whole + whole

    def many(call: Callable[[], Any], times: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(times):
                call()

        return run

    pieces: dict[str, tuple[Callable[[], Any], int]] = {
        "operation, local": (lambda: x + x, CALLS),
        "operation, rule cached": (lambda: whole + whole, CALLS),
        "operation, first of its kind": (first_of_its_kind, 3),
        "from_local": (lambda: DTensor.from_local(x, mesh, [Replicate()], run_check=False), CALLS),
        "to_local": (lambda: whole.to_local(), CALLS),
        "redistribute": (lambda: summand.redistribute(placements=[Replicate()]).to_local() + 0, CALLS),
        "functional all-reduce": (lambda: funcol.all_reduce(x, "sum", everyone) + 0, CALLS),
        "in-place all-reduce": (lambda: dist.all_reduce(x), CALLS),
    }
    taken = interleave({name: many(*piece) for name, piece in pieces.items()}, PART_ROUNDS, 2)
    return [(name, i, s / pieces[name][1]) for name, m in taken.items() for i, s in enumerate(m.samples)]

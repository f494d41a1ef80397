"""Rank 0 outside the mesh, as each rank runs it: a driver that announces plans, and a mesh that compiles and follows.

Nothing but the plan and the input passes between the two, over the world; the mesh's all-reduces are its own. The plan
of a call fixes what the mesh does (`action`), the shape it does it with, and how many calls it makes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from labkit import contract, lessons, places
from labkit.contract import Domain, Exchange, Plan
from labkit.graphs import record
from labkit.lessons.shared.variants import with_own_code
from labkit.timing import interleave
from labkit.torch_compat import flight_record

__all__ = ["FORMS", "Used", "cost", "serve"]

cliff = lessons.program("cliff")

OUTSIDE, AGAIN, ONCE, EVERY = "outside", "outside (again)", "once a step", "every collective"
FORMS = (OUTSIDE, AGAIN, ONCE, EVERY)
TRACE_S = 30.0  # how long a part of the contract waits for a rank


def domain() -> tuple[Exchange, Domain]:
    """The world's exchange, and the mesh: every rank but 0."""
    world = Exchange.connect("mesh-or-world", timeout=TRACE_S)
    return world, Domain.define(world, "mesh", world.ranks[1:], places.place)


def shard(config: Any, mesh: Domain, group: Any) -> Any:
    """This rank's part of the model, its all-reduces on `group`."""
    place = mesh.ranks.index(mesh.rank)
    return with_own_code(cliff.Model(config, len(mesh.ranks), place, cliff.functional, group))


def serve(config: Any, plans: Sequence[Plan]) -> dict[str, Any]:
    """Serve the plans of rank 0, recorded: what each rank heard, compiled and called, and on which group.

    Returns `heard` (a row a call), `groups` (collectives by group and operation, no messages between two), `health`,
    what its comparison within the mesh and within the world said, `answers` (the first element of each result) and a
    Record.
    """
    world, mesh = domain()
    run = None
    if mesh.member:
        # before the record: the model is built once, and what it is compared in is the mesh's affair
        contract.assert_parity(mesh.exchange, contract.settings(topology={"mesh": list(mesh.ranks)}))
        run = torch.compile(shard(config, mesh, mesh.group), backend=mesh.backend("eager"), dynamic=False)
    used, heard, answers = Used(), [], []
    with torch.no_grad(), contract.compile_health(places.place) as health, record() as rec:
        for index in range(len(plans)):
            before = health.graphs
            with rec.forward():
                plan, value = _lead(plans[index], config, mesh) if run is None else _follow(run, mesh)
            answers.append(value)
            used.note(index)
            shape = plan.tensors.get("x", "-")
            heard.append(
                {"call": index, "action": plan.action, "index": plan.index, "x": shape,
                 "compiled": health.graphs - before}
            )  # fmt: skip
    return {
        "heard": heard, "groups": used.rows, "answers": answers, "record": rec, "health": health.counts(),
        "in the mesh": _compared(mesh.exchange, health) if mesh.member else "outside",
        "in the world": _compared(world, health),
    }  # fmt: skip


def _lead(plan: Plan, config: Any, mesh: Domain) -> tuple[Plan, float | None]:
    """Rank 0: announce a call, give its input, and take the result from the mesh's first rank."""
    x = _input(config, plan)
    contract.send(contract.preflight({"plan": plan.wire()}, {} if x is None else {"x": x}))
    if x is None:
        return plan, None
    y = torch.empty_like(x)
    dist.recv(y, mesh.ranks[0])
    return plan, float(y.flatten()[0])


def _follow(run: Callable[..., Any], mesh: Domain) -> tuple[Plan, float | None]:
    """A mesh rank: hear of a call and make what it plans."""
    meta, tensors = contract.receive(0)
    plan, y = Plan.unwire(meta["plan"]), None
    with contract.executing(plan, mesh.exchange) as made, mesh.inside():
        for name in plan.calls:
            made.step(name)
            y = run(tensors["x"])
    if y is None:
        return plan, None
    value = float(y.flatten()[0])
    if mesh.rank == mesh.ranks[0]:
        dist.send(y.contiguous(), 0)
    return plan, value


def _input(config: Any, plan: Plan) -> Any:
    if "tokens" not in plan.phases:
        return None
    generator = torch.Generator().manual_seed(config.seed)
    return torch.randn(1, plan.phases["tokens"], config.dim, generator=generator)


def _compared(exchange: Exchange, health: contract.Health) -> str:
    try:
        contract.assert_same_health(exchange, health)
        return "alike"
    except contract.HealthError as error:
        return str(error)


class Used:
    """Which groups this rank called collectives of, read call by call, for the flight recorder forgets old ones."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.last = max((e["record_id"] for e in flight_record(stacks=False)), default=-1)

    def note(self, call: int) -> None:
        """Add the collectives since the last call, a row for each group and operation."""
        new = [e for e in flight_record(stacks=False) if e["record_id"] > self.last]
        self.last = max((e["record_id"] for e in new), default=self.last)
        counts: Counter[tuple[str, str]] = Counter()
        for e in new:
            if e["is_p2p"]:
                continue
            name, described = e["process_group"]
            group = "world" if name == "0" or described == "default_pg" else described
            counts[group, e["profiling_name"].rpartition(":")[2].partition(" ")[0]] += 1
        for (group, op), n in counts.items():
            self.rows.append({"call": call, "group": group, "op": op, "calls": n})


def cost(config: Any, driver_ms: Sequence[float], steps: int, rounds: int) -> dict[str, Any]:
    """Seconds a step on this rank, samples in the order of the rounds, for each form and each job of rank 0's.

    'outside': rank 0 sends the input and turns to its own job. 'once a step': besides, all ranks add up a number over
    the world at the end of each step. 'every collective': the mesh's all-reduces are the world's, and rank 0 adds
    zeros to each. Its job is a sleep of so many ms a step, which takes no core from the mesh. A sample is `steps`
    steps in a row, ended by the result's way back to rank 0.
    """
    world, mesh = domain()
    x = config.sample()
    zeros: list[Any] = []
    models: dict[str, Any] = {}
    with torch.no_grad():
        shapes = world.gather("shapes", _shapes(config, mesh, x) if mesh.member else None)[mesh.ranks[0]]
        zeros = [torch.zeros(shape) for shape in shapes]
        for form, group in ((OUTSIDE, mesh.group), (EVERY, dist.group.WORLD)):
            if mesh.member:
                fence = mesh.backend("eager") if form == OUTSIDE else "eager"
                models[form] = torch.compile(shard(config, mesh, group), backend=fence, dynamic=False)

        def step(form: str, seconds: float) -> Any:
            if mesh.member:
                given = torch.empty_like(x)
                dist.broadcast(given, 0)
                y = models.get(form, models[OUTSIDE])(given)
            else:
                dist.broadcast(x, 0)
                y = torch.empty_like(x)
                if form == EVERY:
                    for zero in zeros:
                        dist.all_reduce(zero.zero_())
                if seconds:
                    time.sleep(seconds)
            if form == ONCE:
                dist.all_reduce(torch.ones(1))
            return y

        def sample(form: str, seconds: float) -> Any:
            for _ in range(steps):
                y = step(form, seconds)
            if mesh.rank == mesh.ranks[0]:
                dist.send(y.contiguous(), 0)
            elif not mesh.member:
                dist.recv(y, mesh.ranks[0])
            return y

        right = cliff.full(config)(x)
        errors = {form: float((sample(form, 0.0) - right).abs().max()) for form in FORMS}
        jobs = [(form, ms) for ms in driver_ms for form in FORMS]
        variants = {f"{form}|{ms:g}": partial(sample, form, ms / 1e3) for form, ms in jobs}
        taken = interleave(variants, rounds=rounds, warmup=1, barrier=dist.barrier)
    return {
        "samples": {name: [s / steps for s in m.samples] for name, m in taken.items()},
        "errors": {} if mesh.rank not in (0, mesh.ranks[0]) else errors,
        "reduces": len(zeros),
    }


def _shapes(config: Any, mesh: Domain, x: Any) -> list[list[int]]:
    """The shapes that the mesh reduces in one step, in their order."""
    seen: list[list[int]] = []

    def noted(part: Any, group: Any = None) -> Any:
        seen.append(list(part.shape))
        return cliff.inplace(part, group)

    cliff.Model(config, len(mesh.ranks), mesh.ranks.index(mesh.rank), noted, mesh.group)(x)
    return seen

"""The ten break-it tests as a rank runs them: something is broken on purpose, and a part of the contract meets it.

Each is a function of a `Stand`. With `stand.defended` off the one part that is to meet the fault is left out, and
everything else stays as it is: so a test that is green for another reason shows itself. Source: topic 12, "Minimal
daily regression suite (break-it tests)", in its order.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit import contract, lessons
from labkit.contract import (
    Exchange,
    Fingerprints,
    Heartbeat,
    InputDigests,
    Plan,
    Watchdog,
    announce,
    assert_parity,
    assert_same_health,
    compile_health,
    settings,
    warm_up,
)
from labkit.torch_compat import funcol

__all__ = ["BODIES", "KNOWN_SITE", "WINDOW_S", "Stand", "orphan"]

cliff = lessons.program("cliff")

ENV = "SCOPE_KV_BIAS_BACKEND"
KNOWN_SITE = "kv = cache[:, :4] if end < 5 else cache"  # where `first_break` may break, and nowhere before
WINDOW_S = 1.0
LEADER, WORKER = 1, 2  # of three ranks in `orphan`: rank 0 only keeps the store, as a launcher does
LOG = logging.getLogger("labkit.break-it")


@dataclass
class Stand:
    """Where a test stands: its exchange with the other ranks, their device, and whether the defence is on.

    `odd` is the rank on which something is broken.
    """

    exchange: Exchange
    defended: bool
    device: str

    @property
    def rank(self) -> int:
        """This rank."""
        return self.exchange.rank

    @property
    def odd(self) -> bool:
        """Whether this is the last rank."""
        return self.rank == self.exchange.ranks[-1]


def smoke(stand: Stand) -> Any:
    """The leader has nothing to do in its third call, and the workers hear of it before they enter a collective."""
    todo, heard, total = ("infer", "infer", "noop", "infer", "shutdown"), [], 0.0
    for index in itertools.count():
        mine = None
        if stand.rank == 0:
            mine = Plan.of(todo[index], calls=todo[index] == "infer", index=index)
        if stand.defended:
            plan = announce(stand.exchange, mine)
        else:  # the worker takes every call to be like the one before
            plan = mine or Plan.of("infer", calls=1, index=index)
        heard.append(plan.action)
        if plan.action == "shutdown":
            return {"heard": heard, "total": total}
        with contract.executing(plan, stand.exchange) as run:
            if plan.action == "infer":
                x = torch.full((4,), float(index), device=stand.device)
                if stand.rank == 0:
                    contract.send(contract.preflight({"index": index}, {"x": x}))
                else:
                    x = contract.receive(0, device=stand.device)[1]["x"]
                run.step()
                dist.all_reduce(x)
                total += float(x[0])


def env(stand: Stand) -> Any:
    """One host's environment names another attention backend, which adds up in another way."""
    os.environ[ENV] = "paged" if stand.odd else "flash"
    try:
        if stand.defended:
            assert_parity(stand.exchange, settings(env=[ENV]))
        x = torch.arange(4.0, device=stand.device)
        dist.all_reduce(x, dist.ReduceOp.MAX if os.environ[ENV] == "paged" else dist.ReduceOp.SUM)
        return x.tolist()
    finally:
        del os.environ[ENV]


def compile_gate(stand: Stand) -> Any:
    """A tensor-parallel model under torch.compile; undefended, its all-reduce is hidden from the compiler."""
    reduce = cliff.functional if stand.defended else cliff.disabled
    config = cliff.Config(dim=64, heads=len(stand.exchange.ranks), blocks=1, tokens=4)
    model = cliff.Model(config, len(stand.exchange.ranks), stand.rank, reduce).to(stand.device)
    compiled, x = torch.compile(model, backend="eager"), config.sample(device=stand.device)
    with torch.no_grad():
        with compile_health() as first:
            compiled(x)
        with compile_health() as steady:
            compiled(x)
    assert_same_health(stand.exchange, first)
    return {"graphs": first.graphs, "breaks": steady.breaks, "regions": steady.regions}


def first_break(stand: Stand) -> Any:
    """With fullgraph the compiler stops at the first break: the known slice, unless a stray log call stands before."""
    pure = stand.defended

    def attend(q, cache, end):
        if not pure:
            LOG.warning("attention backend: flash")
        kv = cache[:, :4] if end < 5 else cache
        return funcol.all_reduce(q * kv.sum(1), "sum", dist.group.WORLD)

    q, cache = torch.ones(2, 4, device=stand.device), torch.ones(2, 8, 4, device=stand.device)
    LOG.disabled = True
    try:
        torch.compile(attend, backend="eager", fullgraph=True)(q, cache, torch.tensor(3))
        where = ""
    except Exception as error:
        where = _own_line(str(error))
    return stand.exchange.gather("first break", where)


def _own_line(said: str) -> str:
    """The innermost line of user code in an error of Dynamo."""
    found = re.findall(r'File "[^"]+", line \d+, in .+\n\s+(.+)', said.partition("from user code")[2])
    return found[-1].strip() if found else said.strip().splitlines()[0]


def guards(stand: Stand) -> Any:
    """Eight calls after a warmup with the shapes that are served; undefended, it warmed up with another one."""

    def program(x):
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD)

    compiled = torch.compile(program, backend="eager", dynamic=False)
    served = [torch.ones(rows, 4, device=stand.device) for rows in (2, 3)]
    warmed = served if stand.defended else [torch.ones(1, 4, device=stand.device)]

    def calls(inputs):
        for x in inputs:
            compiled(x) + 0

    with torch.no_grad():
        warm = warm_up(stand.exchange, lambda: calls(warmed), timeout=60.0)
        with compile_health() as after:
            for _ in range(4):
                calls(served)
    assert_same_health(stand.exchange, after)
    return {"rounds": warm.rounds, **after.counts()}


def one_dimension(stand: Stand) -> Any:
    """A length that was always 4 becomes 6 and 7: as the leader announces; undefended, only where the queue says so."""

    def program(x):
        return funcol.all_reduce(x.mean(0), "sum", dist.group.WORLD)

    compiled = torch.compile(program, backend="eager")
    with torch.no_grad(), compile_health() as health:
        for index, length in enumerate((4, 4, 6, 6, 7)):
            if stand.defended:
                mine = Plan.of("infer", phases={"length": length}, calls=1, index=index)
                mine = announce(stand.exchange, mine if stand.rank == 0 else None)
                length = mine.phases["length"]
            elif not stand.odd:
                length = 4
            compiled(torch.ones(length, 4, device=stand.device)) + 0
    assert_same_health(stand.exchange, health)
    return health.counts()


def orphan(folder: str, defended: bool) -> Any:
    """Of three ranks: the leader is killed, and the worker waits for its next plan over a store that lives on."""
    me = int(os.environ["RANK"])
    if me not in (LEADER, WORKER):
        return "keeps the store"
    exchange = Exchange.connect("break-it-orphan", ranks=[LEADER, WORKER], timeout=300.0)
    if me == LEADER:
        Heartbeat(exchange.store, every=WINDOW_S / 10)
        exchange.gather("up", True)
        os.kill(os.getpid(), signal.SIGKILL)
    with open(os.path.join(folder, "stderr"), "w") as said:
        os.dup2(said.fileno(), 2)
    exchange.gather("up", True)
    if defended:
        Watchdog(exchange.store, window=WINDOW_S)
    return announce(exchange, leader=LEADER).action


def preflight(stand: Stand) -> Any:
    """The leader is asked to send metadata that cannot be pickled, and then something that can be."""
    x = torch.arange(4.0, device=stand.device)
    if stand.rank:
        meta, tensors = contract.receive(0, device=stand.device)
        return {"got": meta, "x": tensors["x"].tolist()}
    bad, refused = {"steps": 4, "lock": threading.Lock()}, ""
    try:
        if not stand.defended:
            header = torch.tensor([64], device=stand.device)
            dist.broadcast(header, 0)  # now the peers wait for a body
            pickle.dumps(bad)
        contract.send(contract.preflight(bad, {"x": x}))
    except contract.PreflightError as error:
        refused = str(error)
    contract.send(contract.preflight({"steps": 4}, {"x": x}))
    return {"refused": refused}


def digest(stand: Stand) -> Any:
    """A tensor is broadcast, and then the last bits of one element change on rank 0."""
    x = torch.ones(4, device=stand.device)
    dist.broadcast(x, 0)
    if stand.rank == 0:
        x[2] += 1e-6
    InputDigests(stand.exchange, every=1 if stand.defended else 0).check(0, x=x)
    return x.tolist()


def fingerprint(stand: Stand) -> Any:
    """A shard is changed in place on one rank, after all ranks had taken fingerprints."""
    shard = {"w": torch.ones(4, device=stand.device) * (stand.rank + 1)}
    watched = Fingerprints(stand.exchange, shard)
    if stand.odd:
        shard["w"][0] *= 1.0001
    if stand.defended:
        watched.check()
    return shard["w"].tolist()


BODIES: dict[str, Callable[[Stand], Any]] = {
    body.__name__.replace("_", "-"): body
    for body in (
        *(smoke, env, compile_gate, first_break, guards),
        *(one_dimension, preflight, digest, fingerprint),
    )
}

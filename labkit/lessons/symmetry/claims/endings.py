"""Ends without a hang: a rank that fails, and a worker whose leader falls silent."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist

from labkit.contract import Exchange
from labkit.lessons.shared.outcomes import all_of
from labkit.lessons.symmetry.claims.contract import both_tripwires_catch, drift
from labkit.ranks import RankError
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, quietly, verdict

WINDOW_S = 1.0
GENEROUS_S = 30.0  # how long a process on a busy machine may take to end after its window


@probe
def ending(bench: Bench) -> Seen:
    """A rank that fails before a collective, with and without telling its peer, and a leader that falls silent."""
    return {
        "together": {on: _fails(bench, on == "told") for on in ("told", "silent")},
        "orphan": {on: _orphan(on == "on") for on in ("on", "off")},
        "drift": drift.run(bench),
    }


def _fails(bench: Bench, told: bool) -> list[str]:
    """How each rank ends where rank 1 fails ahead of an all-reduce: its error, or what it was left waiting in."""
    try:
        return [f"right: {value}" for value in bench.ranks().run(quietly, _collective, told, stall=2.0)]
    except RankError as error:
        ends = {o.rank: f"{o.type}: {o.message}" if o.type else f"waits in {o.waits}" for o in error.outcomes}
        return [ends[rank] for rank in sorted(ends)]


def _collective(told: bool) -> float:
    exchange, x = Exchange.connect("check-together"), torch.ones(2)
    if told and exchange.rank:
        exchange.fail("out of memory")
    if exchange.rank:
        raise MemoryError("out of memory")
    if told:
        exchange.gather("ready", True)
    dist.all_reduce(x)
    return x[0].item()


_LEADER = """
import sys, time, torch.distributed as dist
from labkit.contract import Heartbeat
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
beat = Heartbeat(store, every=0.1)
print(store.port, flush=True)
sys.stdin.read()
"""
_WORKER = """
import sys, torch.distributed as dist
from datetime import timedelta
from labkit.contract import Watchdog
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=300))
dog = Watchdog(store, window=float(sys.argv[2])) if sys.argv[2] != "off" else None
print("up", flush=True)
store.wait(["never"], timedelta(seconds=300))
"""


def _orphan(watched: bool) -> int | None:
    """The exit code of a worker whose leader was stopped; None where it was still waiting some windows later."""
    quiet: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
    }
    leader = subprocess.Popen([sys.executable, "-c", _LEADER], text=True, **quiet)
    worker = None
    try:
        assert leader.stdout is not None
        port = leader.stdout.readline().strip()
        window = str(WINDOW_S) if watched else "off"
        worker = subprocess.Popen([sys.executable, "-c", _WORKER, port, window], text=True, **quiet)
        assert worker.stdout is not None
        worker.stdout.readline()
        leader.send_signal(signal.SIGSTOP)
        try:
            return worker.wait(GENEROUS_S if watched else 4 * WINDOW_S)
        except subprocess.TimeoutExpired:
            return None
    finally:
        for process in filter(None, (leader, worker)):
            process.kill()
            process.communicate()


@judging(ending, word=ENFORCED)
def ranks_fail_together(seen: Seen) -> Result:
    """A rank that fails tells its peer, which raises too; without that the peer is left waiting in a collective."""
    told, silent = seen["together"]["told"], seen["together"]["silent"]
    right = told == ["ContractError: rank 1 failed: out of memory", "MemoryError: out of memory"]
    stranded = silent == ["waits in all_reduce", "MemoryError: out of memory"]
    return verdict(right and stranded, f"rank 0 told: {told[0]}; not told: {silent[0]}")


@judging(ending, word=ENFORCED)
def an_orphan_leaves(seen: Seen) -> Result:
    """A worker whose leader was stopped ends by its watchdog; without one it goes on waiting."""
    on, off = seen["orphan"]["on"], seen["orphan"]["off"]
    return verdict(
        on == 17 and off is None, f"with a watchdog: exit code {on}; without: {off or 'still waiting'}"
    )


@judging(ending, word=ENFORCED)
def watchdogs_and_tripwires_crash(seen: Seen) -> Result:
    """A worker whose leader was stopped ends by its watchdog; inputs and weights that drift raise on every rank."""
    return all_of(an_orphan_leaves(seen), both_tripwires_catch(seen["drift"]))

"""Ends without a hang: a message that cannot be sent, a rank that fails, and a worker whose leader falls silent."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import torch

from labkit import contract
from labkit.contract import Exchange
from labkit.lessons.symmetry.claims.contract import both_tripwires_catch, drift, two
from labkit.study.checks import ENFORCED, HOLDS, Bench, Result, Seen, judging, probe, verdict

WINDOW_S = 1.0
GENEROUS_S = 30.0  # how long a process on a busy machine may take to end after its window


@probe
def ending(bench: Bench) -> Seen:
    """What cannot be sent, a rank that fails before it comes, and a leader that falls silent."""
    try:
        contract.preflight({"callback": lambda: 1}, {"x": torch.ones(2)})
        refused = ""
    except contract.PreflightError as error:
        refused = str(error).splitlines()[0]

    def fails(ex: Exchange, odd: bool) -> Any:
        if odd:
            ex.fail("out of memory")
            raise MemoryError("out of memory")
        return ex.gather("plan", 0)

    return {
        "refused": refused,
        "together": two(fails),
        "orphan": {on: _orphan(on == "on") for on in ("on", "off")},
        "drift": drift.run(bench),
    }


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
def preflight_fails_on_the_sender(seen: Seen) -> Result:
    """Metadata that cannot be pickled raises before anything is sent."""
    said = seen["refused"]
    return verdict("cannot be pickled" in said, said or "it was sent")


@judging(ending, word=ENFORCED)
def ranks_fail_together(seen: Seen) -> Result:
    """A rank that fails tells its peer, which raises too instead of waiting."""
    row = seen["together"]
    right = row["alike"] == ["ok", "ok"] and row["odd"][0] == "ContractError: rank 1 failed: out of memory"
    return verdict(right, f"rank 0: {row['odd'][0]}")


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
    orphan, tripped = an_orphan_leaves(seen), both_tripwires_catch(seen["drift"])
    return verdict(orphan.status == tripped.status == HOLDS, f"{orphan.measured}; {tripped.measured}")

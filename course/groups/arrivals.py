"""How processes find each other: some that call `init_process_group` themselves, and one that watches their store."""

from __future__ import annotations

import datetime
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch.distributed as dist

from labkit.ranks import Ranks, here
from labkit.report import PerRank, Report, provenance

__all__ = ["Arrival", "meet"]

STARTED_S = 300.0  # ends what hangs before the processes are up and know the watcher
LOOK_S = 0.005
HIDDEN = "(not listed)"
JOINED, FAILED, WAITING = "joined", "error", "still waiting"


@dataclass(frozen=True)
class Arrival:
    """A process that comes `after` seconds and believes that it is `rank` of `world_size`.

    >>> Arrival(0, 4).after
    0.0
    """

    rank: int
    world_size: int
    after: float = 0.0


def meet(
    join: Callable[[], Any],
    arrivals: Sequence[Arrival],
    *,
    patience: float = 6.0,
    env: Mapping[str, str] | None = None,
    talk: bool = False,
) -> Report:
    """Let new processes call `join`, each as the rank that its arrival says, and watch their store.

    MASTER_ADDR and MASTER_PORT are set; rank 0 serves the store there. A further process looks into the store every few
    milliseconds. All processes are ended after `patience`, whatever they wait for.

    Args:
        join: Called in each process, without a group; it calls `init_process_group`. Its value is kept.
        arrivals: A process for each: its RANK, its WORLD_SIZE, and when it comes.
        patience: Seconds after the start until all processes are ended.
        env: More environment variables for all processes.
        talk: Print every key when it appears.

    Returns:
        A report with two tables. `processes` (process, rank, world_size, came, ended, outcome, said, value): times in
        seconds, outcome 'joined', 'error' or 'still waiting'. `keys` (seconds, key, value): a row whenever a key
        appears or changes; a key that the store counts and does not list is '(not listed)'.

    Raises:
        ValueError: An arrival is impossible, or there is none.

    >>> meet(print, [])
    Traceback (most recent call last):
        ...
    ValueError: a meeting needs at least one arrival
    """
    if not arrivals:
        raise ValueError("a meeting needs at least one arrival")
    for one in arrivals:
        if one.rank < 0 or one.world_size < 1 or not 0 <= one.after < patience:
            raise ValueError(
                f"{one}: rank and world_size count from 0 and 1, and after lies before the {patience:g} s of patience"
            )
    count = len(arrivals)
    # ranks of the fake backend are processes that do not know each other; their group is put aside
    with Ranks(count + 1, "cpu", "fake", quiet=True, live=False) as processes:
        ports = free_ports(2)
        processes.run(_serve_control, ports[1], ranks=count, timeout=STARTED_S)
        limit = patience + 2 * STARTED_S
        found = processes.run(
            _attend, join, tuple(arrivals), ports, patience, dict(env or {}), talk, timeout=limit, stall=None
        )
    return _report(found, arrivals, provenance(patience=patience, **(dict(env or {}))))


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on at the moment."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


# --- in a process ---

_control: Any = None


def _serve_control(port: int) -> None:
    """A store beside the one that is watched: who is ready, who has ended, and when it is over."""
    global _control
    _control = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def _attend(
    join: Callable[[], Any],
    arrivals: Sequence[Arrival],
    ports: Sequence[int],
    patience: float,
    env: Any,
    talk: bool,
) -> dict[str, Any]:
    me = here().rank
    dist.destroy_process_group()
    os.environ.update(env)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what torch logs of timeouts is told as the outcome
    if me == len(arrivals):
        return _watch(_control, len(arrivals), ports[0], patience, talk)
    limit = datetime.timedelta(seconds=STARTED_S)
    control = dist.TCPStore("127.0.0.1", ports[1], is_master=False, wait_for_workers=False, timeout=limit)
    return _arrive(control, join, arrivals[me], ports[0], patience)


def _arrive(
    control: Any, join: Callable[[], Any], mine: Arrival, port: int, patience: float
) -> dict[str, Any]:
    os.environ.update(RANK=str(mine.rank), LOCAL_RANK=str(mine.rank), WORLD_SIZE=str(mine.world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    control.add("ready", 1)
    control.wait(["begin"])
    begin = float(control.get("begin"))
    found: dict[str, Any] = {"outcome": WAITING, "said": "", "value": None, "ended": patience}
    time.sleep(max(0.0, begin + mine.after - time.monotonic()))
    found["came"] = time.monotonic() - begin

    def call() -> None:
        try:
            value = join()
            ended = {"outcome": JOINED, "value": value}
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            ended = {"outcome": FAILED, "said": f"{type(error).__name__}: {lines[0]}"}
        found.update(ended, ended=time.monotonic() - begin)

    # beside the main thread, which goes on when patience is over, wherever this one stands
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(max(0.0, begin + patience - time.monotonic()))
    control.add("ended", 1)
    control.wait(["over"])  # who serves the store stays until all have ended
    return dict(found)


def _watch(control: Any, count: int, port: int, patience: float, talk: bool) -> dict[str, Any]:
    control.wait(["ready"])
    until = time.monotonic() + STARTED_S
    while control.add("ready", 0) < count and time.monotonic() < until:
        time.sleep(LOOK_S)
    begin = time.monotonic() + 0.05
    control.set("begin", repr(begin))  # by a clock that all processes of a machine share
    seen: dict[str, bytes] = {}
    rows: list[tuple[float, str, bytes]] = []
    store, served = None, None
    last = False
    while not last:  # one look more after all have ended: whoever serves the store is still there
        last = time.monotonic() >= begin + patience or control.add("ended", 0) == count
        if store is None:
            store = _client(port)
            served = None if store is None else time.monotonic() - begin
        else:
            try:
                new = _look(store, seen, begin)
                rows += new
                for seconds, key, value in new if talk else ():
                    what = value.decode() if value.isdigit() else f"{len(value)} bytes"
                    print(f"{seconds:5.2f} s  {key}  {what}", flush=True)
            except Exception as error:  # the process that served it has gone
                rows.append((time.monotonic() - begin, "", f"{type(error).__name__}".encode()))
                break
        time.sleep(LOOK_S)
    control.set("over", "1")
    time.sleep(0.1)  # the others hear of it before the store goes
    return {"keys": rows, "served": served}


def _client(port: int) -> Any:
    """A client of the watched store, or None while nobody serves it. One that waits for no workers, and is none."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return None
    limit = datetime.timedelta(seconds=2)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=limit)
    except dist.DistError:  # it has gone, or is slow: the next look finds out
        return None
    store.set_timeout(datetime.timedelta(seconds=STARTED_S))
    return store


def _look(store: Any, seen: dict[str, bytes], begin: float) -> list[tuple[float, str, bytes]]:
    """What has appeared or changed since the last look."""
    count, listed = store.num_keys(), store.list_keys()
    values = {key: store.get(key) for key in listed if store.check([key])}
    if count == store.num_keys() and count > len(listed):  # nothing came between the two
        values[HIDDEN] = str(count - len(listed)).encode()
    now = time.monotonic() - begin
    new = [(now, key, value) for key, value in values.items() if seen.get(key) != value]
    seen.update(values)
    return new


# --- in the kernel ---


def _report(found: PerRank[dict[str, Any]], arrivals: Sequence[Arrival], settings: dict[str, Any]) -> Report:
    processes = [
        (i, one.rank, one.world_size, *(found[i][k] for k in ("came", "ended", "outcome", "said", "value")))
        for i, one in enumerate(arrivals)
    ]
    watched = found[len(arrivals)]
    keys = [row for row in watched["keys"] if row[1]]
    tables: dict[str, pd.DataFrame] = {
        "processes": pd.DataFrame(
            processes, columns=["process", "rank", "world_size", "came", "ended", "outcome", "said", "value"]
        ),
        "keys": pd.DataFrame(keys, columns=["seconds", "key", "value"]),
    }
    gone = [row for row in watched["keys"] if not row[1]]
    notes = [f"the store was gone after {row[0]:.2f} s ({row[2].decode()})" for row in gone]
    if watched["served"] is None:
        notes.append("nobody served a store at MASTER_ADDR and MASTER_PORT")
    return Report("rendezvous", "Rendezvous", "gloo · cpu", tables, [], settings, notes)

"""How two processes find each other with init_process_group: two of their own, which labkit has not set up."""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist

from labkit.lessons.groups.experiment import HIDDEN, Arrival, free_ports, meet
from labkit.lessons.shared.capture import first_line
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict

# rank 1 comes only when it is told to, so that what rank 0 does alone can be seen
PROGRAM = """
import json, os, sys, time
import torch.distributed as dist

if os.environ["RANK"] == "1":
    sys.stdin.readline()
dist.init_process_group("gloo", init_method="env://")
joined = time.monotonic()  # one clock for all processes of a machine
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)
dist.new_group([0, 1])
dist.barrier()
values = {key: store.get(key) for key in store.list_keys()}
with open("/proc/net/tcp") as table:
    rows = [line.split() for line in table][1:]
dist.barrier()
found = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "joined": joined}
found["keys"] = {key: value.hex() for key, value in values.items()}
found["listening"] = [row[1] for row in rows if row[3] == "0A"]
print(json.dumps(found), flush=True)
dist.barrier()
os._exit(0)  # gloo may abort a process that leaves with its threads running
"""
PATIENCE_S = 60.0


@probe
def rendezvous(bench: Bench) -> Seen:
    """Two processes that call init_process_group with env://, the second later than the first."""
    (port,) = free_ports(1)
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
    }
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank)}, text=True, **pipes)
        for rank in range(2)
    ]
    try:
        served = _answers(port)
        time.sleep(0.5)
        let_in = time.monotonic()
        texts = [p.communicate("come\n", timeout=PATIENCE_S)[0] for p in reversed(processes)][::-1]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = [json.loads(text.strip().splitlines()[-1]) if text.strip() else {} for text in texts]
    if not all(found):
        raise RuntimeError("a process ended before the group was made")
    return {
        "port_from_environment_answers": served,
        "rank_0_waited": found[0]["joined"] > let_in,
        "world": [[f["rank"], f["world_size"]] for f in found],
        "keys": {key: _address(bytes.fromhex(value)) for key, value in found[0]["keys"].items()},
        "listening": [":".join(_local(entry)) for entry in found[0]["listening"]],
        "named": all(
            socket.gethostname() in bytes.fromhex(value).decode(errors="replace")
            for key, value in found[0]["keys"].items()
            if "//cpu//" in key
        ),
    }


def _address(entry: bytes) -> str:
    """The address and port in what a gloo rank writes: its host's name, then a socket's address; '' for another."""
    name = 8 + int.from_bytes(entry[:8], "little")
    family, port, address = (
        entry[name + 8 : name + 10],
        entry[name + 10 : name + 12],
        entry[name + 12 : name + 16],
    )
    if int.from_bytes(family, "little") != socket.AF_INET or len(address) < 4:
        return ""
    return f"{socket.inet_ntoa(address)}:{int.from_bytes(port, 'big')}"


def _local(entry: str) -> tuple[str, str]:
    """Address and port of a row of /proc/net/tcp."""
    address, port = entry.split(":")
    return socket.inet_ntoa(bytes.fromhex(address)[::-1]), str(int(port, 16))


def _answers(port: int) -> bool:
    """Whether someone comes to listen on the port, before rank 1 has been let in."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except OSError:
            time.sleep(0.1)
    return False


@judging(rendezvous)
def rank_zero_serves(seen: Seen) -> Result:
    """Rank 0 alone makes a server answer at MASTER_ADDR and MASTER_PORT."""
    served = seen["port_from_environment_answers"]
    return verdict(served, "the port answers before rank 1 has come" if served else "nothing answers")


@judging(rendezvous)
def environment_is_read(seen: Seen) -> Result:
    """With env:// address, port, rank and world size come from the environment."""
    ok = seen["world"] == [[0, 2], [1, 2]] and seen["port_from_environment_answers"]
    return verdict(ok, f"rank and world size of the two: {seen['world']}")


@judging(rendezvous)
def completes_when_all_are_there(seen: Seen) -> Result:
    """The call of rank 0 returns only after rank 1 has been let in, and then both are in a world of two."""
    waited = seen["rank_0_waited"] and seen["world"] == [[0, 2], [1, 2]]
    return verdict(
        waited, "rank 0's call returns after rank 1 was let in" if waited else "rank 0 did not wait"
    )


@judging(rendezvous)
def ranks_write_addresses(seen: Seen) -> Result:
    """Every rank leaves an entry in the store with its host's name, and an address and port where somebody listens."""
    own, named = _addresses(seen, "default_pg/0//cpu//0/"), seen["named"]
    return verdict(
        _answered(seen, own) and named,
        f"{_listed(own)}, {'with' if named else 'without'} the name of this host",
    )


@judging(rendezvous)
def addresses_go_through_the_store(seen: Seen) -> Result:
    """For a new group as for the first one, the ranks exchange addresses and ports through a TCPStore."""
    first, new = (_addresses(seen, f"default_pg/0//{middle}cpu//0/") for middle in ("", "1//"))
    apart = not set(first.values()) & set(new.values())
    return verdict(
        _answered(seen, first) and _answered(seen, new) and apart,
        f"read by a TCPStore's client: {_listed(first)}; for a new group {_listed(new)}",
    )


def _addresses(seen: Seen, prefix: str) -> dict[str, str]:
    return {key[len(prefix) :]: said for key, said in sorted(seen["keys"].items()) if key.startswith(prefix)}


def _answered(seen: Seen, own: dict[str, str]) -> bool:
    return (
        list(own) == ["0", "1"]
        and len(set(own.values())) == 2
        and set(own.values()) <= set(seen["listening"])
    )


def _listed(own: dict[str, str]) -> str:
    return (
        ", ".join(f"rank {rank} {said or 'no address'}" for rank, said in own.items()) or "no entries by rank"
    )


LATE_S, TIMEOUT_S = 0.8, 2.0


@probe
def meetings(bench: Bench) -> Seen:
    """Four processes of which the last comes late, and three that expect a fourth: outcomes, and when keys appear."""

    def join() -> int:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))
        return dist.get_world_size()

    late = meet(join, [Arrival(i, 4, LATE_S * (i == 3)) for i in range(4)], patience=PATIENCE_S / 2)
    missing = meet(join, [Arrival(i, 4) for i in range(3)], patience=PATIENCE_S / 2)
    keys = late.tables["keys"].drop_duplicates("key").set_index("key")["seconds"]
    listed = keys.drop(HIDDEN, errors="ignore")
    return {
        "outcomes": list(late.tables["processes"]["outcome"]),
        "last_came_s": float(late.tables["processes"]["came"].max()),
        "keys": [key for key in listed.index],
        "server_key_s": float(listed[[k.endswith("/0") for k in listed.index]].max()),
        "unlisted": HIDDEN in keys,
        "missing": list(missing.tables["processes"]["said"]),
    }


@judging(meetings)
def a_counter_is_in_the_store(seen: Seen) -> Result:
    """Inside init_process_group the store counts who has come; of three without the fourth none gets through."""
    said = next((text for text in seen["missing"] if "3/4 clients joined" in text), "")
    through = sum(not text for text in seen["missing"])
    return verdict(
        bool(said) and seen["unlisted"] and not through,
        (f"rank 0: {said!r}" if said else "nobody counts")
        + f"; {through} of {len(seen['missing'])} got through"
        + ("; list_keys leaves the counter's key out, num_keys counts it" if seen["unlisted"] else ""),
    )


@judging(meetings)
def backend_comes_second(seen: Seen) -> Result:
    """First the store is up and the ranks come, then the backend is made, which puts its addresses into the store."""
    after = seen["server_key_s"] - seen["last_came_s"]
    return verdict(
        after >= 0 and set(seen["outcomes"]) == {"joined"} and len(seen["keys"]) == len(seen["outcomes"]),
        f"rank 0 puts the address of its backend into the store {after:.2f} s after the last rank has come",
    )


WORLD = 4


@probe
def arrivals(bench: Bench) -> Seen:
    """One to four of four clients of a TCPStore that waits for its workers: what each ends with."""
    return bench.run(_arrivals, ranks=1)[0]


def _arrivals() -> Seen:
    limit, stores = datetime.timedelta(seconds=1), list[Any]()
    found: dict[str, Any] = {str(count): {} for count in range(1, WORLD + 1)}

    def come(rank: int, port: int, ends: dict[str, str]) -> None:
        try:
            stores.append(dist.TCPStore("127.0.0.1", port, WORLD, is_master=rank == 0, timeout=limit))
            ends[str(rank)] = "joined"
        except Exception as error:
            ends[str(rank)] = first_line(error)

    ports = free_ports(WORLD)
    with ThreadPoolExecutor(max_workers=WORLD * (WORLD + 1) // 2) as threads:
        for count, ends in found.items():
            for rank in range(int(count)):
                threads.submit(come, rank, ports[int(count) - 1], ends)
    counted = dist.TCPStore("127.0.0.1", ports[-1], is_master=False, wait_for_workers=False, timeout=limit)
    alone = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    return found | {"keys": [counted.num_keys(), alone.num_keys()]}  # in neither has anybody set one


@judging(arrivals)
def every_rank_counts(seen: Seen) -> Result:
    """Each client that comes adds one to a counter in the store, and rank 0 waits until it is the world size."""
    said = [seen[str(count)]["0"] for count in range(1, WORLD + 1)]
    counted = [f"{i}/{WORLD} clients joined" in text for i, text in enumerate(said[:-1], 1)]
    kept, without = seen["keys"]
    return verdict(
        all(counted) and said[-1] == "joined" and kept == 1 and without == 0,
        f"with 1 to {WORLD - 1} of {WORLD} rank 0 counts right and times out: {counted}; with all: {said[-1]}; keys "
        f"in a store where nothing was set: {kept}, and {without} where nobody waits for others",
    )


@judging(arrivals)
def every_rank_waits(seen: Seen) -> Result:
    """No client gets through before the counter has reached the world size."""
    early = [rank for count in range(2, WORLD) for rank, said in seen[str(count)].items() if said == "joined"]
    return verdict(
        not early,
        f"{len(early)} clients went through before all had come; rank 0 alone, which serves, waits for the count",
    )

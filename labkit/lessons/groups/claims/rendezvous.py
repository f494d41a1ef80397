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
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import default_store

# rank 1 comes only when it is told to, so that what rank 0 does alone can be seen
PROGRAM = """
import json, os, sys
import torch.distributed as dist

if os.environ["RANK"] == "1":
    sys.stdin.readline()
dist.init_process_group("gloo", init_method="env://")
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def table():  # a client's socket may be one of either kind
    rows = [line.split() for name in ("tcp", "tcp6")
            if os.path.exists(f"/proc/net/{name}") for line in open(f"/proc/net/{name}")]
    return [[row[1][-13:], row[2][-13:], row[3]] for row in rows if ":" in row[1]]

found = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
found["connected"] = [far for near, far, state in table() if state == "01" and far.endswith(f":{port:04X}")]
dist.barrier()  # from here on there are clients of our own
store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)
dist.new_group([0, 1])
dist.barrier()
values = {key: store.get(key) for key in store.list_keys()}
rows = table()
found["listening"] = [near for near, far, state in rows if state == "0A"]
found["called"] = [far for near, far, state in rows if state == "01"]
dist.barrier()
found["keys"] = {key: value.hex() for key, value in values.items()}
print(json.dumps(found), flush=True)
dist.barrier()
os._exit(0)  # gloo may abort a process that leaves with its threads running
"""
PATIENCE_S = 60.0
MASTER = "127.0.0.2"  # of this machine, and no address that anybody would take by default


@probe
def rendezvous(bench: Bench) -> Seen:
    """Two processes that call init_process_group with env://, the second later than the first."""
    (port,) = free_ports(1)
    world = {"MASTER_ADDR": MASTER, "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
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
        "world": [[f["rank"], f["world_size"]] for f in found],
        "keys": {key: _address(bytes.fromhex(value)) for key, value in found[0]["keys"].items()},
        "listening": [":".join(_local(entry)) for entry in found[0]["listening"]],
        "called": [":".join(_local(entry)) for entry in found[0]["called"]],
        "connected_to": sorted({_local(entry)[0] for one in found for entry in one["connected"]}),
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
            socket.create_connection((MASTER, port), timeout=1).close()
            return True
        except OSError:
            time.sleep(0.1)
    return False


@judging(rendezvous)
def rank_zero_serves(seen: Seen) -> Result:
    """Rank 0 alone makes a server answer at MASTER_ADDR and MASTER_PORT, and a client reads the store's keys there."""
    served, keys = seen["port_from_environment_answers"], len(seen["keys"])
    said = "the port answers before rank 1 has come" if served else "nothing answers before rank 1 has come"
    return verdict(served and keys > 0, f"{said}; a TCPStore's client reads {keys} keys there")


@judging(rendezvous)
def environment_is_read(seen: Seen) -> Result:
    """With env:// address, port, rank and world size come from the environment."""
    to, world = seen["connected_to"], seen["world"]
    return verdict(
        world == [[0, 2], [1, 2]] and seen["port_from_environment_answers"] and to == [MASTER],
        f"rank and world size of the two: {world}; connected at the port, with MASTER_ADDR {MASTER}: "
        f"{', '.join(to) or 'to nobody'}",
    )


@judging(rendezvous)
def ranks_write_addresses(seen: Seen) -> Result:
    """Every rank leaves an entry in the store with its host's name, and an address and port where somebody listens."""
    own, named = _addresses(seen, "default_pg/0//cpu//0/"), seen["named"]
    to = seen["connected_to"]
    return verdict(
        _answered(seen, own) and named and to == [MASTER],
        f"gloo: {_listed(own)}, {'with' if named else 'without'} the name of this host; connected at the store's port: "
        f"{', '.join(to) or 'to nobody'}",
    )


@judging(rendezvous)
def addresses_go_through_the_store(seen: Seen) -> Result:
    """For a new group as for the first, ranks put addresses and ports into a TCPStore, and connect at one of them."""
    first, new = (_addresses(seen, f"default_pg/0//{middle}cpu//0/") for middle in ("", "1//"))
    apart = not set(first.values()) & set(new.values())
    called = [[said for said in own.values() if said in seen["called"]] for own in (first, new)]
    return verdict(
        _answered(seen, first) and _answered(seen, new) and apart and all(called),
        f"read by a TCPStore's client: {_listed(first)}; for a new group {_listed(new)}; connections at "
        f"{', '.join(sum(called, [])) or 'none of them'}",
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
    """Four processes of which the last comes late, and three that expect a fourth: outcomes, times, and keys."""

    def join() -> int:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))
        return dist.get_world_size()

    late = meet(join, [Arrival(i, 4, LATE_S * (i == 3)) for i in range(4)], patience=PATIENCE_S / 2)
    missing = meet(join, [Arrival(i, 4) for i in range(3)], patience=PATIENCE_S / 2)
    keys = late.tables["keys"].drop_duplicates("key").set_index("key")["seconds"]
    listed = keys.drop(HIDDEN, errors="ignore")
    processes = late.tables["processes"]
    return {
        "outcomes": list(processes["outcome"]),
        "last_came_s": float(processes["came"].max()),
        "first_joined_s": float(processes["ended"].min()),
        "keys": [key for key in listed.index],
        "server_key_s": float(listed[[k.endswith("/0") for k in listed.index]].max()),
        "unlisted": HIDDEN in keys,
        "missing": list(missing.tables["processes"]["said"]),
        "without_the_last": sorted({key for key in missing.tables["keys"]["key"] if key != HIDDEN}),
    }


def _counted(seen: Seen) -> str:
    """What rank 0 says that has counted three of four, where all start-ups ended so: none of three, and all of four."""
    said = next((text for text in seen["missing"] if "3/4 clients joined" in text), "")
    together = set(seen["outcomes"]) == {"joined"} and seen["first_joined_s"] >= seen["last_came_s"]
    return said if together and all(seen["missing"]) else ""


def _ends(seen: Seen) -> str:
    through = sum(not text for text in seen["missing"])
    after = seen["first_joined_s"] - seen["last_came_s"]
    return (
        f"of {len(seen['missing'])} that expect a fourth {through} get through; of four the first does {after:.2f} s "
        "after the last has come"
    )


@judging(meetings)
def completes_when_all_are_there(seen: Seen) -> Result:
    """In a world of four nobody is through without the fourth: the store of rank 0 waits; with it, all are."""
    said = _counted(seen)
    return verdict(bool(said), f"rank 0: {said or 'waits for nobody'}; {_ends(seen)}")


@judging(meetings)
def a_counter_is_in_the_store(seen: Seen) -> Result:
    """Inside init_process_group the store counts who has come, in a key of its own; nobody is through before all."""
    said = _counted(seen)
    return verdict(
        bool(said) and seen["unlisted"],
        f"rank 0: {said!r}" * bool(said) + "nobody counts" * (not said) + f"; {_ends(seen)}"
        + "; list_keys leaves the counter's key out, num_keys counts it" * seen["unlisted"],
    )  # fmt: skip


@judging(meetings)
def backend_comes_second(seen: Seen) -> Result:
    """Rank 0 makes its backend, which puts an address into the store, after the store was up and the ranks had come."""
    after = seen["server_key_s"] - seen["last_came_s"]
    alone = [key for key in seen["without_the_last"] if key.endswith("/0")]
    return verdict(
        after >= 0
        and not alone
        and set(seen["outcomes"]) == {"joined"}
        and len(seen["keys"]) == len(seen["outcomes"]),
        f"rank 0 puts the address of its backend into the store {after:.2f} s after the last rank has come; "
        f"where one never comes: {'at once' if alone else 'never'}",
    )


@judging(meetings)
def every_backend_waits_for_all(seen: Seen) -> Result:
    """No rank makes its backend, which puts an address into the store, while a rank is missing."""
    early = seen["without_the_last"]
    return verdict(
        not early,
        f"where the fourth never comes {len(early)} of 3 put the address of their backend into the store: "
        f"{', '.join(early) or 'none'}; rank 0 alone waits until all have come",
    )


WORLD, ADDS = 4, 2000


@probe
def arrivals(bench: Bench) -> Seen:
    """One to four of four clients of a TCPStore beside one that does not wait: what each ends with; two that add."""
    return bench.run(_arrivals)[0]


def _arrivals() -> Seen:
    limit, stores = datetime.timedelta(seconds=1), list[Any]()
    found: dict[str, Any] = {str(count): {} for count in range(1, WORLD + 1)}
    dist.barrier()
    mine = [default_store().add("labkit-counted", 1) for _ in range(ADDS)]  # both ranks at the same time
    added: list[list[int]] = [[], []]
    dist.all_gather_object(added, mine)
    world = default_store()
    while isinstance(world, dist.PrefixStore):
        world = world.underlying_store
    if dist.get_rank():
        return found

    def come(who: str, port: int, ends: dict[str, str], **options: Any) -> None:
        try:
            stores.append(dist.TCPStore("127.0.0.1", port, WORLD, timeout=limit, **options))
            ends[who] = "joined"
        except Exception as error:
            ends[who] = first_line(error)

    ports = free_ports(WORLD)
    with ThreadPoolExecutor(max_workers=WORLD * (WORLD + 3) // 2) as threads:
        for port, (count, ends) in zip(ports, found.items(), strict=True):
            for rank in range(int(count)):
                threads.submit(come, str(rank), port, ends, is_master=rank == 0)
            threads.submit(come, "beside", port, ends, is_master=False, wait_for_workers=False)
    counted = dist.TCPStore("127.0.0.1", ports[-1], is_master=False, wait_for_workers=False, timeout=limit)
    alone = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    return found | {
        "barriers": [key for key in world.list_keys() if "store_based_barrier" in key],  # torch's own name
        "keys": [counted.num_keys(), alone.num_keys()],  # in neither has anybody set one
        "added": sorted(sum(added, [])) == list(range(1, 2 * ADDS + 1)),
        "took_turns": max(added[0]) < min(added[1]) or max(added[1]) < min(added[0]),
    }


@judging(arrivals)
def every_rank_counts(seen: Seen) -> Result:
    """Each client that comes adds one to a counter in the store, atomically; one that does not wait is not counted."""
    said = [seen[str(count)]["0"] for count in range(1, WORLD + 1)]
    counted = [f"{i}/{WORLD} clients joined" in text for i, text in enumerate(said[:-1], 1)]
    beside = sum(seen[str(count)]["beside"] == "joined" for count in range(1, WORLD + 1))
    kept, without = seen["keys"]
    told = (
        f"with 1 to {WORLD - 1} of {WORLD} rank 0 counts right and times out: {counted}, with a further connection "
        f"each: {beside}; with all: {said[-1]}; keys in a store where nothing was set: {kept}, and {without} where "
        f"nobody waits for others; two processes add 1 {ADDS} times each: "
        f"{'every' if seen['added'] else 'not every'} sum comes out once"
    )
    if seen["took_turns"]:
        return cannot_tell("processes that add at the same time", told)
    clients = all(counted) and said[-1] == "joined" and beside == WORLD
    return verdict(clients and kept == 1 and without == 0 and seen["added"], told)


@judging(arrivals)
def every_rank_waits(seen: Seen) -> Result:
    """No client gets through before the counter has reached the world size, or all wait as init_process_group ends."""
    early = [who for n in "23" for who, said in seen[n].items() if said == "joined" and who != "beside"]
    return verdict(
        not early or bool(seen["barriers"]),
        f"{len(early)} clients went through before all had come; rank 0 alone, which serves, waits for the count; "
        f"{len(seen['barriers'])} keys of a barrier at the end, which TORCH_DIST_INIT_BARRIER=1 turns on",
    )

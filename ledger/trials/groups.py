"""How ranks find each other, and who is in whose group: store, rendezvous, process groups, device mesh (CPU)."""

from __future__ import annotations

import datetime
import gc
import os
import re
import socket
import struct
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.utils.store import barrier as store_barrier
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.distributed.multi_threaded_pg import ProcessLocalGroup

from labkit import shm
from labkit.ranks import Ranks
from ledger.bench import Bench, quietly
from ledger.graphs import first_line
from ledger.trial import CannotTell, NotThere, Seen, judge, part

HOST = "127.0.0.1"
LATER_S = 0.4


def seconds(count: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=count)


def attempt(call) -> str:
    """What a call raises, in one line, or ''."""
    try:
        call()
        return ""
    except Exception as error:
        return first_line(error)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as held:
        return held.getsockname()[1]


def tcp_store():
    """The TCPStore below all prefixes of the default group's store."""
    store = distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def client_and_server(timeout: float = 10.0):
    """The client first: a server that ends before its clients may take 5 s."""
    server = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=seconds(timeout))
    return client_of(server.port, timeout), server


def client_of(port: int, timeout: float = 10.0):
    return dist.TCPStore(HOST, port, is_master=False, wait_for_workers=False, timeout=seconds(timeout))


def in_new_ranks(count: int, backend: str, function, *arguments):
    """On ranks of their own: these end with groups that do not fit, or with another default group."""
    with Ranks(count, "cpu", backend, quiet=True, timeout=60) as ranks:
        return list(ranks.run(quietly, function, *arguments).values())


# --- init_process_group: four processes, of which rank 3 comes later ---

KEPT = []  # stores that must outlive the call
ADDRESS_OF = re.compile(r"cpu//0/(\d+)$")  # the key under which a gloo rank writes where it listens


def own_sockets() -> list[tuple[str, int, int]]:
    """State, own port and other port of each TCP socket of this process."""
    mine, found = set(), []
    for name in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            row = line.split()
            if f"socket:[{row[9]}]" in mine:
                found.append((row[3], int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16)))
    return found


def written(store) -> list[int]:
    """The ranks whose gloo address is in the store."""
    return sorted({int(m[1]) for key in store.list_keys() if (m := ADDRESS_OF.search(key))})


def arrive(port: int, world_size: int, agent: bool) -> Seen:
    me, late = dist.get_rank(), 3
    dist.destroy_process_group()
    os.environ.update(MASTER_ADDR=HOST, MASTER_PORT=str(port), RANK=str(me), WORLD_SIZE=str(world_size))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(agent)
    seen: Seen = {}
    if me == late:
        if agent:  # the store that torchrun's agent serves
            KEPT.append(dist.TCPStore(HOST, port, is_master=True, wait_for_workers=False))
        KEPT.append(store := client_of(port))
        others = min(world_size, late)
        until = time.monotonic() + 5
        while time.monotonic() < until and len(set(written(store)) - {0}) < others - 1:
            time.sleep(0.02)
        time.sleep(1)  # for who might come after them
        seen["early"] = written(store)
    seen["came"] = time.monotonic()
    if me < world_size:
        dist.init_process_group("gloo", init_method="env://", timeout=seconds(20))
        seen["ended"] = time.monotonic()
        sockets = own_sockets()
        seen["serves"] = any(state == "0A" and own == port for state, own, _ in sockets)
        seen["connected"] = any(state == "01" and other == port for state, _, other in sockets)
        seen["world"] = [dist.get_rank(), dist.get_world_size()]
    if me == late and world_size > late:
        seen["all"] = written(store)
    return seen


def arrivals(world_size: int, agent: bool) -> Seen:
    ranks = in_new_ranks(4, "fake", arrive, free_port(), world_size, agent)
    if (found := ranks[3].get("all", ranks[3]["early"])) != list(range(world_size)):
        raise ValueError(f"the reader of gloo's keys finds the ranks {found} when all have come")
    return {
        "early": ranks[3]["early"],
        "after_the_last_came": min(one["ended"] for one in ranks[:3]) - ranks[3]["came"],
        "serves": [one["serves"] for one in ranks if "serves" in one],
        "connected": [one["connected"] for one in ranks if "serves" in one],
        "world": [one["world"] for one in ranks if "world" in one],
    }


def one_comes_late(bench: Bench) -> Seen:
    return arrivals(4, agent=False)


def three_are_enough(bench: Bench) -> Seen:
    return arrivals(3, agent=False)


def one_comes_late_to_an_agent(bench: Bench) -> Seen:
    return arrivals(4, agent=True)


@judge(one_comes_late, counter=three_are_enough)
def init_waits_for_all(seen):
    after = seen["after_the_last_came"]
    yield part(
        "No rank returns", after >= 0, f"the first of ranks 0 to 2 returns {after:.2f} s after rank 3 came"
    )


@judge(one_comes_late, counter=one_comes_late_to_an_agent)
def only_rank_zero_waits(seen):
    early = seen["early"]
    said = f"while rank 3 is missing the addresses of ranks {early} are in the store"
    yield part("rank 0 alone waits", 0 not in early, said)
    yield part("the other ranks write their gloo addresses", {1, 2} <= set(early), said)


@judge(one_comes_late, counter=one_comes_late_to_an_agent)
def rank_zero_serves(seen):
    serves, connected = seen["serves"], seen["connected"]
    yield part(
        "rank 0's process serves", serves == [True, False, False, False], f"listens at the port: {serves}"
    )
    yield part("the others connect", all(connected[1:]), f"connected at the port: {connected}")
    yield part(
        "RANK and WORLD_SIZE",
        seen["world"] == [[rank, 4] for rank in range(4)],
        f"ranks and sizes {seen['world']}",
    )


# --- what a TCPStore does ---


def counting(wait_for_workers: bool) -> Seen:
    """One, two and three of four come to a server that waits: the master, and clients."""
    said: dict[int, str] = {}
    ports = {count: free_port() for count in (1, 2, 3)}

    def serve(count: int) -> None:
        options = {"is_master": True, "timeout": seconds(1)}
        said[count] = attempt(lambda: KEPT.append(dist.TCPStore(HOST, ports[count], 4, **options)))

    def come(count: int) -> None:
        options = {"is_master": False, "timeout": seconds(3), "wait_for_workers": wait_for_workers}
        attempt(lambda: KEPT.append(dist.TCPStore(HOST, ports[count], 4, **options)))

    threads = [threading.Thread(target=serve, args=(count,)) for count in ports]
    threads += [threading.Thread(target=come, args=(count,)) for count in ports for _ in range(count - 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"said": [said[count] for count in ports]}


def ranks_are_missing(bench: Bench) -> Seen:
    return bench.run(counting, True)[0]


def clients_that_do_not_wait(bench: Bench) -> Seen:
    return bench.run(counting, False)[0]


@judge(ranks_are_missing, counter=clients_that_do_not_wait)
def rank_zero_counts(seen):
    said = seen["said"]
    right = [f"{count}/4 clients joined" in text for count, text in enumerate(said, 1)]
    yield part("DistStoreError", all(text.startswith("DistStoreError") for text in said), said[-1])
    yield part("how many ranks have come", all(right), f"with 1, 2 and 3 of 4 the count is right: {right}")


ADDING_S = 0.4


def count_together(atomic: bool) -> Seen:
    store, key = tcp_store(), f"ledger count {time.time_ns()}"
    keys = [key]
    dist.broadcast_object_list(keys, 0)
    if dist.get_rank() == 0:
        store.add(keys[0], 0)

    def step() -> int:
        if atomic:
            return store.add(keys[0], 1)
        value = int(store.get(keys[0])) + 1
        store.set(keys[0], str(value))
        return value

    dist.barrier()
    store.add(f"{keys[0]} begin", 1)
    while store.add(f"{keys[0]} begin", 0) < 2:
        pass
    mine, until = [], time.monotonic() + ADDING_S
    while time.monotonic() < until:
        mine.append(step())
    both = [[], []]
    dist.all_gather_object(both, mine)
    count = len(both[0]) + len(both[1])
    return {
        "count": count,
        "once": sorted(both[0] + both[1]) == list(range(1, count + 1)),
        "took_turns": max(both[0]) < min(both[1]) or max(both[1]) < min(both[0]),
    }


def adds(bench: Bench) -> Seen:
    return bench.run(count_together, True)[0]


def gets_and_sets(bench: Bench) -> Seen:
    return bench.run(count_together, False)[0]


@judge(adds, counter=gets_and_sets)
def add_is_atomic(seen):
    if seen["took_turns"] and seen["once"]:
        raise CannotTell("two processes that add at the same time")
    yield part(
        "gets each sum exactly once", seen["once"], f"{seen['count']} calls: each sum once: {seen['once']}"
    )


def listening_at(port: int) -> list[str]:
    """The addresses at which this machine listens on a port, as the kernel writes them."""
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        if Path(f"/proc/net/{table}").exists()
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


def listen(bound: bool) -> Seen:
    for host, kernel in ((HOST, "0100007F"), ("0.0.0.0", "00000000")):
        with socket.create_server((host, 0)) as control:
            if listening_at(control.getsockname()[1]) != [kernel]:
                raise CannotTell("a list of listening sockets (/proc/net/tcp)")
    options = {"is_master": True, "wait_for_workers": False}
    if bound:
        own = socket.create_server((HOST, 0))
        port = own.getsockname()[1]
        server = dist.TCPStore(HOST, port, master_listen_fd=own.detach(), **options)
    else:
        server = dist.TCPStore(HOST, 0, **options)
    client_of(server.port).set("key", "value")
    return {"at": listening_at(server.port)}


def server_at_127(bench: Bench) -> Seen:
    return bench.run(listen, False)[0]


def server_with_a_bound_socket(bench: Bench) -> Seen:
    return bench.run(listen, True)[0]


@judge(server_at_127, counter=server_with_a_bound_socket)
def listens_everywhere(seen):
    everywhere = bool(seen["at"]) and all(not address.strip("0") for address in seen["at"])
    said = f"given 127.0.0.1 it listens at {seen['at']} (of /proc/net/tcp)"
    yield part("listens at every address of the machine", everywhere, said)


def thread_count(master: bool) -> Seen:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    other = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    calm, python = threads(), threading.active_count()
    one = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False) if master else client_of(other.port)
    alone = threads() - calm
    clients = [client_of(one.port) for _ in range(4)]
    for i, client in enumerate(clients):
        client.set(f"key {i}", "value")
    seen = {
        "threads": alone,
        "with_clients": threads() - calm,
        "of_python": threading.active_count() - python,
        "served": [one.get(f"key {i}").decode() for i in range(4)],
    }
    clients.clear()  # before their server, which may take 5 s otherwise
    del one
    return seen


def server_threads(bench: Bench) -> Seen:
    return bench.run(thread_count, True)[0]


def client_threads(bench: Bench) -> Seen:
    return bench.run(thread_count, False)[0]


@judge(server_threads, counter=client_threads)
def server_is_a_thread(seen):
    one = seen["threads"] == 1 and seen["of_python"] == 0
    said = f"{seen['threads']} more threads, {seen['of_python']} of them Python's"
    yield part("one C++ thread", one, said)
    many = seen["with_clients"] == seen["threads"] and seen["served"] == ["value"] * 4
    yield part("however many clients connect", many, f"{seen['with_clients']} with 4 clients, all served")


STORED = 32 << 20


def keep(kind: str) -> Seen:
    """Rank 1 sets eight values of 4 MiB and goes; rank 0 is looked at, and reads them."""
    me, place = dist.get_rank(), [""]
    server = None
    if me == 0:
        if kind == "tcp":
            server = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        place = [str(server.port) if server else tempfile.mktemp(prefix="ledger-store-")]
    dist.broadcast_object_list(place, 0)
    store = server or (client_of(int(place[0])) if kind == "tcp" else dist.FileStore(place[0], 2))
    before = resident()
    dist.barrier()
    if me == 1:
        for i in range(8):
            store.set(f"large {i}", "x" * (STORED // 8))
        del store
        gc.collect()
    dist.barrier()
    if me == 1:
        return {}
    grown = resident() - before
    kept = [len(store.get(f"large {i}")) for i in range(8)]
    return {"grown": grown, "kept": sum(kept), "cuda": torch.cuda.is_initialized()}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tcp_store_keeps(bench: Bench) -> Seen:
    return bench.run(keep, "tcp")[0]


def file_store_keeps(bench: Bench) -> Seen:
    return bench.run(keep, "file")[0]


@judge(tcp_store_keeps, counter=file_store_keeps)
def values_in_memory_of_rank_zero(seen):
    said = f"{STORED >> 20} MiB set by rank 1: {seen['grown'] >> 20} MiB more in rank 0's process"
    yield part("is kept in the memory of rank 0's process", seen["grown"] >= 0.9 * STORED, said)
    there = seen["kept"] == STORED
    yield part("after the client that set it has gone", there, f"then {seen['kept'] >> 20} MiB can be read")


def connect(server_after: float) -> Seen:
    port, servers, at = free_port(), [], {}

    def serve() -> None:
        time.sleep(server_after)
        at["server"] = time.monotonic()
        servers.append(dist.TCPStore(HOST, port, is_master=True, wait_for_workers=False))

    thread = threading.Thread(target=serve)
    thread.start()
    if not server_after:
        thread.join()
    called = time.monotonic()
    client = client_of(port)
    returned = time.monotonic()
    thread.join()
    client.set("key", "value")
    return {
        "called": called - at["server"],
        "returned": returned - at["server"],
        "works": servers[0].get("key").decode() == "value",
    }


def late_server(bench: Bench) -> Seen:
    return bench.run(connect, LATER_S)[0]


def early_server(bench: Bench) -> Seen:
    return bench.run(connect, 0.0)[0]


@judge(late_server, counter=early_server)
def client_waits_for_server(seen):
    called, returned = seen["called"], seen["returned"]
    said = f"made {-called:.2f} s before the server, returned {returned:.2f} s after it"
    yield part("made before its server blocks", called < 0 <= returned, said)
    yield part(
        "until the server listens", seen["works"], "it works then" if seen["works"] else "it does not work"
    )


def get_or_check(method: str) -> Seen:
    client, server = client_and_server(timeout=0.8)

    def ask(key: str):
        return client.get(key).decode() if method == "get" else client.check([key])

    timer = threading.Timer(LATER_S, lambda: server.set("later", "value"))
    timer.start()
    began = time.monotonic()
    value = ask("later")
    taken = time.monotonic() - began
    timer.join()
    began = time.monotonic()
    said = attempt(lambda: ask("nobody"))
    return {"seconds": taken, "value": value, "said": said, "gave_up_s": time.monotonic() - began}


def gets(bench: Bench) -> Seen:
    return bench.run(get_or_check, "get")[0]


def checks(bench: Bench) -> Seen:
    return bench.run(get_or_check, "check")[0]


@judge(gets, counter=checks)
def get_blocks(seen):
    blocks = seen["seconds"] >= LATER_S * 0.9 and seen["value"] == "value"
    yield part("blocks until a client sets it", blocks, f"set after {LATER_S} s: {seen['seconds']:.2f} s")
    raises = seen["said"].startswith("DistStoreError") and seen["gave_up_s"] >= 0.7
    said = f"set by nobody, timeout 0.8 s: {seen['said'] or 'no error'} after {seen['gave_up_s']:.1f} s"
    yield part("raises DistStoreError at the store's timeout", raises, said)


def wait_at_one_of_four(bench: Bench) -> Seen:
    return bench.run(wait_for_count, False)[0]


def barrier_at_one_of_four(bench: Bench) -> Seen:
    return bench.run(wait_for_count, True)[0]


def wait_for_count(with_barrier: bool) -> Seen:
    """One of four comes: wait for the counter's key, or torch's own barrier, whose last rank sets another key."""
    client, server = client_and_server(timeout=1.0)
    if with_barrier:
        said = attempt(lambda: store_barrier(client, 4, "ledger", barrier_timeout=0.5))
        return {"takes": [True], "returned": not said, "said": said, "count": 1}
    server.add("arrived", 1)
    said = attempt(lambda: client.wait(["arrived"], seconds(0.5)))
    count = client.add("arrived", 0)
    calls = (lambda: client.wait(["arrived"], 4), lambda: client.wait(["arrived"], target_value=4))
    refused = [attempt(call) for call in calls]
    if other := [text for text in refused if text and not text.startswith("TypeError")]:
        raise ValueError(f"another error: {other[0]}")
    return {"takes": [not text for text in refused], "returned": not said, "said": said, "count": count}


@judge(wait_at_one_of_four, counter=barrier_at_one_of_four)
def wait_takes_no_value(seen):
    taken = any(seen["takes"])
    yield part(
        "takes no value", not taken, "a value to wait for is taken" if taken else "TypeError for a value"
    )
    early = seen["returned"] and seen["count"] == 1
    said = f"at 1 of 4 it {'returns' if seen['returned'] else 'does not return: ' + seen['said']}"
    yield part("returns as soon as the key of a counter is there", early, said)


def wait_and_set(wait_first: bool) -> Seen:
    me, names = dist.get_rank(), [f"ledger {time.time_ns()}"]
    dist.broadcast_object_list(names, 0)
    store, mine, other = tcp_store(), f"{names[0]} {me}", f"{names[0]} {1 - me}"
    dist.barrier()
    if not wait_first:
        store.set(mine, "1")
    said = attempt(lambda: store.wait([other], seconds(0.8)))
    store.set(mine, "1")
    return {"said": said}


def both_wait(bench: Bench) -> Seen:
    return {"said": [one["said"] for one in bench.run(wait_and_set, True)]}


def both_set(bench: Bench) -> Seen:
    return {"said": [one["said"] for one in bench.run(wait_and_set, False)]}


@judge(both_wait, counter=both_set)
def wait_before_set(seen):
    raised = all("DistStoreError" in text and "timeout" in text for text in seen["said"])
    said = seen["said"][0] or "no error"
    yield part("both get a DistStoreError at the timeout", raised, said)


# --- what groups write into the store ---


def same_key(two_groups: bool) -> Seen:
    below, before = tcp_store(), set(tcp_store().list_keys())
    first = dist.new_group([0, 1])
    second = dist.new_group([0, 1]) if two_groups else first
    stores = [group.get_group_store() for group in (first, second)]
    dist.barrier()
    for i, store in enumerate(stores):
        store.set("ledger", f"group {i}")
    dist.barrier()
    return {
        "kinds": [type(store).__name__ for store in stores],
        "values": [store.get("ledger").decode() for store in stores],
        "keys": sorted(key for key in set(below.list_keys()) - before if key.endswith("ledger")),
    }


def two_new_groups(bench: Bench) -> Seen:
    return bench.run(same_key, True)[0]


def one_new_group(bench: Bench) -> Seen:
    return bench.run(same_key, False)[0]


@judge(two_new_groups, counter=one_new_group)
def group_has_a_prefix(seen):
    own = seen["kinds"] == ["PrefixStore"] * 2 and len(seen["keys"]) == 2
    yield part("a PrefixStore with a prefix of its own", own, f"in the TCPStore: {', '.join(seen['keys'])}")
    apart = seen["values"] == ["group 0", "group 1"]
    yield part("the same key holds a value for each group", apart, f"values {seen['values']}")


def addresses(backend: str) -> Seen:
    store, before = tcp_store(), set(tcp_store().list_keys())
    dist.barrier()
    dist.new_group(backend=backend)
    dist.barrier()
    keys = {"default": before, "new": set(store.list_keys()) - before}
    # of all groups made so far the default one has the shortest prefix
    shortest = min((len(ADDRESS_OF.sub("", key)) for key in before if ADDRESS_OF.search(key)), default=0)
    keys["default"] = {key for key in before if len(ADDRESS_OF.sub("", key)) == shortest}
    found = {
        group: {m[1]: told(store.get(key)) for key in sorted(mine) if (m := ADDRESS_OF.search(key))}
        for group, mine in keys.items()
    }
    dist.barrier()
    return found


def told(value: bytes) -> Seen:
    """What a gloo rank writes: the length of its host's name, the name, and a socket address."""
    at = 8 + int.from_bytes(value[:8], "little") + 8
    family = int.from_bytes(value[at : at + 2], "little")
    if family != socket.AF_INET:
        raise ValueError(f"the reader of gloo's addresses does not know the family {family}")
    port = int.from_bytes(value[at + 2 : at + 4], "big")
    address = socket.inet_ntoa(value[at + 4 : at + 8])
    named = socket.gethostname().encode() in value[:at]
    return {"named": named, "address": f"{address}:{port}", "listens": bool(listening_at(port))}


def gloo_addresses(bench: Bench) -> Seen:
    return bench.run(addresses, "gloo")[0]


def fake_addresses(bench: Bench) -> Seen:
    return bench.run(addresses, "fake")[0]


@judge(gloo_addresses, counter=fake_addresses)
def gloo_writes_addresses(seen):
    for words, group in (("the default group", "default"), ("each new one", "new")):
        both = list(seen[group]) == ["0", "1"]
        yield part(words, both, f"{group}: {[one['address'] for one in seen[group].values()]}")
    every = [one for group in ("default", "new") for one in seen[group].values()]
    yield part("its host's name", all(one["named"] for one in every))
    yield part("the address at which it listens", all(one["listens"] for one in every))


def wrong_order(first_on_rank_1: str) -> Seen:
    """Rank 0 makes [1] and then [0, 1]; what each rank gets of [0, 1]."""
    todo = [[1], [0, 1]]
    if dist.get_rank() == 1 and first_on_rank_1 == "both":
        todo.reverse()
    dist.barrier()
    said, names = {}, {}
    for ranks in todo:
        names[len(ranks)] = distributed_c10d._world.group_count
        said[len(ranks)] = attempt(lambda ranks=ranks: dist.new_group(ranks, timeout=seconds(1.5)))
    return {"said": said[2], "name": names[2]}


def in_columns(ranks: list[Seen]) -> Seen:
    return {name: [one[name] for one in ranks] for name in ranks[0]}


def late_by_name(said: list[str], names: list) -> bool:
    """Whether ranks timed out, as they know the group by different names; a timeout with one name is noise."""
    late = any("imeout" in text or "imed out" in text for text in said)
    if late and len(set(names)) == 1:
        raise ValueError(f"a timeout of a group that has one name on all ranks: {said}")
    return late


def other_order(bench: Bench) -> Seen:
    return in_columns(in_new_ranks(2, "gloo", wrong_order, "both"))


def same_order(bench: Bench) -> Seen:
    return in_columns(in_new_ranks(2, "gloo", wrong_order, "one"))


@judge(other_order, counter=same_order)
def order_of_new_groups(seen):
    late = late_by_name(seen["said"], seen["name"])
    raised = late and all("imeout" in text or "imed out" in text for text in seen["said"])
    said = f"new_group([0, 1]) under the names {seen['name']}: {seen['said'][0] or 'no error'}"
    yield part("times out on both", raised, said)


# --- use_local_synchronization ---


def local_then_all(members: list[int], flag: bool) -> Seen:
    me, said = dist.get_rank(), {"members": "", "all": ""}

    def use(group, count: int) -> None:
        dist.all_reduce(x := torch.ones(1), group=group)
        if x.item() != count:
            raise ValueError(f"a wrong sum, {x.item()}")

    if me in members:
        # without the flag over 'fake', which leaves no address that other ranks would then connect to
        options = {"use_local_synchronization": True} if flag else {"backend": "fake"}
        group = dist.new_group(members, timeout=seconds(1.5), **options)
        if flag:
            said["members"] = attempt(lambda: use(group, len(members)))
    size = dist.get_world_size()
    said["name"] = distributed_c10d._world.group_count
    said["all"] = attempt(lambda: use(dist.new_group(timeout=seconds(1.5)), size))
    return said


def local_group_then_all(flag: bool) -> Seen:
    both = [in_new_ranks(3, "gloo", local_then_all, members, flag) for members in ([0, 1], [2])]
    return {kind: [[one[kind] for one in ranks] for ranks in both] for kind in ("members", "name", "all")}


def with_local_synchronization(bench: Bench) -> Seen:
    return local_group_then_all(True)


def members_alone_without(bench: Bench) -> Seen:
    return local_group_then_all(False)


@judge(with_local_synchronization, counter=members_alone_without)
def after_a_local_group(seen):
    if any(text for ranks in seen["members"] for text in ranks):
        raise ValueError(f"the group of the members: {seen['members']}")
    late = [late_by_name(said, names) for said, names in zip(seen["all"], seen["name"], strict=True)]
    for ranks, timeout in zip(seen["all"], late, strict=True):
        if any(ranks) and not timeout:
            raise ValueError(f"another error: {ranks}")
    said = [
        f"after {members} under the names {names}: {next(filter(None, ranks), 'works')}"
        for members, names, ranks in zip(("[0, 1]", "[2]"), seen["name"], seen["all"], strict=True)
    ]
    yield part("the next new_group of all ranks works", not any(late), "; ".join(said))


def overlapping(groups: list[list[int]], flag: bool) -> list[str]:
    """Make these groups in this order, each on its members (with the flag) or on all ranks."""
    me = dist.get_rank()
    return [
        attempt(
            lambda ranks=ranks: dist.new_group(ranks, timeout=seconds(1.5), use_local_synchronization=flag)
        )
        if me in ranks or not flag
        else "no member"
        for ranks in groups
    ]


def in_one_order(flag: bool) -> Seen:
    forms = ([[0, 1], [1, 2]], [[0, 2], [0, 1, 2]])
    return {
        "second": [
            [
                one[1]
                for rank, one in enumerate(in_new_ranks(3, "gloo", overlapping, form, flag))
                if rank in form[1]
            ]
            for form in forms
        ]
    }


def overlapping_local_groups(bench: Bench) -> Seen:
    return in_one_order(True)


def overlapping_groups(bench: Bench) -> Seen:
    return in_one_order(False)


@judge(overlapping_local_groups, counter=overlapping_groups)
def overlapping_local(seen):
    # a store's timeout says the key, with the group's name
    names = [re.findall(r"keys: \S*?//(\w+)//cpu", " ".join(ranks)) for ranks in seen["second"]]
    late = [late_by_name(ranks, mine) for ranks, mine in zip(seen["second"], names, strict=True)]
    said = [next(filter(None, ranks), "works") for ranks in seen["second"]]
    yield part("times out", all(late), f"[1, 2] after [0, 1]: {said[0]}; [0, 1, 2] after [0, 2]: {said[1]}")


def ranks_in_order(options: dict) -> Seen:
    try:
        group = dist.new_group([1, 0], **options)
    except TypeError as error:
        if "sort_ranks" in str(error):
            raise NotThere("dist.new_group takes no sort_ranks") from None
        raise
    gathered = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(gathered, torch.ones(1) * dist.get_rank(), group=group)
    return {"group_rank": dist.get_rank(group), "gathered": [int(x.item()) for x in gathered]}


def unsorted(bench: Bench) -> Seen:
    return bench.run(ranks_in_order, {"sort_ranks": False})[1]


def by_default(bench: Bench) -> Seen:
    return bench.run(ranks_in_order, {})[1]


@judge(unsorted, counter=by_default)
def sort_ranks_false(seen):
    first = seen["group_rank"] == 0
    yield part("rank 1 the group's rank 0", first, f"rank 1 is the group's rank {seen['group_rank']}")
    yield part("all_gather", seen["gathered"] == [1, 0], f"all_gather gives {seen['gathered']}")


# --- which bytes go where ---

# where Linux keeps a connection's sent bytes in tcp_info (tcpi_bytes_sent, since 4.19)
SENT_AT = 200


def bytes_sent() -> dict:
    """What this process has sent on each of its TCP connections, by (own, other) address."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
                    continue
                ends = tuple(
                    (e[0].removeprefix("::ffff:"), e[1]) for e in (one.getsockname(), one.getpeername())
                )
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # a listening socket has no other end, and a file may be closed meanwhile
            continue
        if len(info) >= SENT_AT + 8:
            found[ends] = struct.unpack_from("=Q", info, SENT_AT)[0]
    return found


def sending(kind: str) -> Seen:
    store, names = distributed_c10d._get_default_store(), [f"ledger {time.time_ns()}"]
    dist.broadcast_object_list(names, 0)
    shm.register()
    group = dist.new_group(backend="shm") if kind == "all_reduce over shm" else None
    x = torch.ones(1 << 18)
    calls = {
        "barrier": dist.barrier,
        "store barrier": lambda: store_barrier(store, 2, names[0]),
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce over shm": lambda: dist.all_reduce(x, group=group),
    }
    keys = tcp_store().num_keys()
    dist.barrier()
    time.sleep(0.1)
    before = bytes_sent()
    calls[kind]()
    time.sleep(0.1)
    after = bytes_sent()
    dist.barrier()
    sent = {ends: count - before.get(ends, 0) for ends, count in after.items()}
    keys = tcp_store().num_keys() - keys
    return {"sent": sent, "port": tcp_store().port, "keys": keys, "size": x.nbytes, "sum": x[0].item()}


def between(bench: Bench, kind: str) -> Seen:
    ranks = list(bench.run(sending, kind))
    control = bench.run(bytes_on_a_socket)[0]
    if control < 1000:
        raise CannotTell("counters of TCP connections (tcpi_bytes_sent, Linux 4.19)")
    port = ranks[0]["port"]
    to_store = [
        sum(n for ends, n in one["sent"].items() if port in (ends[0][1], ends[1][1])) for one in ranks
    ]
    to_other = [
        sum(
            n
            for ends, n in one["sent"].items()
            if port not in (ends[0][1], ends[1][1]) and ends[::-1] in other["sent"]
        )
        for one, other in (ranks, ranks[::-1])
    ]
    return {
        "to_store": sum(to_store),
        "to_other": to_other,
        **{k: ranks[0][k] for k in ("keys", "size", "sum")},
    }


def bytes_on_a_socket() -> int:
    """The reader's control."""
    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        one.sendall(b"x" * 1000)
        found = bytes_sent().get((one.getsockname(), one.getpeername()), 0)
        other.close()
    return found


def a_barrier(bench: Bench) -> Seen:
    return between(bench, "barrier")


def a_store_barrier(bench: Bench) -> Seen:
    return between(bench, "store barrier")


@judge(a_barrier, counter=a_store_barrier)
def barrier_without_store(seen):
    nothing = seen["to_store"] == 0 and seen["keys"] == 0
    yield part("sends nothing to the store", nothing, f"{seen['to_store']} bytes, {seen['keys']} new keys")
    yield part("from rank to rank", all(seen["to_other"]), f"bytes between ranks: {seen['to_other']}")


def an_all_reduce(bench: Bench) -> Seen:
    return between(bench, "all_reduce")


def an_all_reduce_over_shm(bench: Bench) -> Seen:
    return between(bench, "all_reduce over shm")


@judge(an_all_reduce, counter=an_all_reduce_over_shm)
def gloo_uses_tcp(seen):
    if seen["sum"] != 2:
        raise ValueError("a wrong sum")
    # a rank of two must send half of its data to reduce and half to gather
    said = f"all-reduce of {seen['size']} bytes on two ranks: {seen['to_other']} bytes over TCP"
    yield part("all bytes of an all-reduce go over TCP", min(seen["to_other"]) >= seen["size"], said)


# --- backends ---


def new_group_of(backend: str) -> Seen:
    found: Seen = {"error": "", "made": {}, "mpi": dist.is_mpi_available()}

    def make() -> None:
        group = dist.new_group(backend=backend)
        dist.all_reduce(x := torch.ones(1), group=group)
        found["sum"] = x.item()
        for kind in ("cpu", "meta"):
            try:
                found["made"][kind] = type(group._get_backend(torch.device(kind))).__name__
            except RuntimeError:
                found["made"][kind] = ""

    try:
        make()
    except RuntimeError as error:
        found["error"] = f"RuntimeError: {' '.join(str(error).split())}"
    return found


def mpi(bench: Bench) -> Seen:
    return bench.run(new_group_of, "mpi")[0]


def gloo(bench: Bench) -> Seen:
    return bench.run(new_group_of, "gloo")[0]


def gloo_and_fake(bench: Bench) -> Seen:
    return bench.run(new_group_of, "cpu:gloo,meta:fake")[0]


@judge(mpi, counter=gloo)
def no_mpi(seen):
    asks = "build PyTorch from source on a host that has MPI" in seen["error"]
    yield part("come without MPI", not seen["mpi"], f"is_mpi_available(): {seen['mpi']}")
    yield part(
        "raises a RuntimeError that asks for a build from source", asks, seen["error"][:160] or "no error"
    )


@judge(gloo_and_fake, counter=gloo)
def backend_per_device(seen):
    made = seen["made"]
    two = bool(made.get("cpu")) and bool(made.get("meta")) and made["cpu"] != made["meta"]
    yield part("a backend for each device type", two and seen["sum"] == 2, seen["error"] or f"{made}")


# --- device mesh: each of eight ranks in turn, over 'fake' ---


def as_each_rank(function, *arguments) -> list[Seen]:
    found = []
    for rank in range(8):
        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
        found.append(function(*arguments))
    return found


def made_groups(make) -> tuple:
    made, new_group = [], device_mesh.new_group

    def counted(*arguments, **options):
        made.append(list(options.get("ranks") or arguments[0]))
        return new_group(*arguments, **options)

    device_mesh.new_group = counted
    try:
        return make(), made
    finally:
        device_mesh.new_group = new_group


def look(form: str) -> Seen:
    make = {
        "2 by 4": lambda: init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp")),
        "8": lambda: init_device_mesh("cpu", (8,), mesh_dim_names=("dp",)),
        "dealt": lambda: DeviceMesh("cpu", [[0, 2, 4, 6], [1, 3, 5, 7]], mesh_dim_names=("dp", "tp")),
    }[form]
    mesh, made = made_groups(make)
    members = [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in range(mesh.ndim)]
    grid = mesh.mesh
    lines = grid.T.tolist() + grid.tolist() if mesh.ndim == 2 else [grid.tolist()]
    return {
        "coordinate": list(mesh.get_coordinate()),
        "members": members,
        "made": sorted(made),
        "lines": sorted(lines),
        "select": grid.select(0, 0).tolist(),
    }


def two_by_four(bench: Bench) -> Seen:
    return {"ranks": in_new_ranks(1, "fake", as_each_rank, look, "2 by 4")[0]}


def dealt(bench: Bench) -> Seen:
    return {"ranks": in_new_ranks(1, "fake", as_each_rank, look, "dealt")[0]}


def one_axis(bench: Bench) -> Seen:
    return {"ranks": in_new_ranks(1, "fake", as_each_rank, look, "8")[0]}


@judge(two_by_four, counter=dealt)
def mesh_columns_and_rows(seen):
    ranks = seen["ranks"]
    columns = [one["members"][0] == [i % 4, i % 4 + 4] for i, one in enumerate(ranks)]
    rows = [one["members"][1] == [i // 4 * 4 + j for j in range(4)] for i, one in enumerate(ranks)]
    five = ranks[5]
    yield part("stands at (1, 1)", five["coordinate"] == [1, 1], f"rank 5 at {tuple(five['coordinate'])}")
    yield part("its column for axis 0, as [1, 5]", all(columns), f"with {five['members'][0]}")
    yield part("its row for axis 1, as [4, 5, 6, 7]", all(rows), f"and {five['members'][1]}")


@judge(two_by_four, counter=one_axis)
def mesh_makes_new_groups(seen):
    made = [one["made"] == one["lines"] for one in seen["ranks"]]
    first = seen["ranks"][0]["made"]
    yield part("calls dist.new_group once for each column and row", all(made), f"on rank 0: {first}")


def where(kind: str) -> Seen:
    """The device of the ranks' tensor of a mesh, or of another tensor."""

    def make(device: str):
        return init_device_mesh(device, (8,)).mesh if kind == "mesh" else torch.arange(8)

    with torch.device("meta"):
        under_meta = make("cpu")
    return {"under_meta": str(under_meta.device), "of_cuda": str(make("cuda").device)}


def mesh_tensor(bench: Bench) -> Seen:
    return in_new_ranks(1, "fake", as_each_rank, where, "mesh")[0][0]


def another_tensor(bench: Bench) -> Seen:
    return in_new_ranks(1, "fake", as_each_rank, where, "other")[0][0]


@judge(mesh_tensor, counter=another_tensor)
def mesh_tensor_on_cpu(seen):
    yield part("of a 'cuda' mesh", seen["of_cuda"] == "cpu", f"of a 'cuda' mesh on {seen['of_cuda']}")
    yield part(
        "under torch.device('meta')", seen["under_meta"] == "cpu", f"under 'meta' on {seen['under_meta']}"
    )


def look_up(new: bool) -> Seen:
    def steps(call) -> int:
        events = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            call()
        finally:
            sys.setprofile(None)
        return len(events)

    shapes = ((8,), (2, 4), (2, 2, 2))
    meshes = [init_device_mesh("cpu", shape, mesh_dim_names=tuple("abc"[-len(shape) :])) for shape in shapes]

    def group_of(mesh):
        if not new:
            return mesh.get_group("c")
        return dist.new_group(mesh.mesh.flatten()[: mesh.size(mesh.ndim - 1)].tolist())

    for mesh in meshes:
        group_of(mesh)
    names = len(distributed_c10d._world.pg_names)
    same = [group_of(mesh) is group_of(mesh) for mesh in meshes]
    made = len(distributed_c10d._world.pg_names) - names
    return {"same": same, "made": made, "steps": [steps(lambda mesh=mesh: group_of(mesh)) for mesh in meshes]}


def get_group(bench: Bench) -> Seen:
    return in_new_ranks(1, "fake", as_each_rank, look_up, False)[0][0]


def new_group_each_time(bench: Bench) -> Seen:
    return in_new_ranks(1, "fake", as_each_rank, look_up, True)[0][0]


@judge(get_group, counter=new_group_each_time)
def mesh_groups_are_cached(seen):
    same = all(seen["same"]) and seen["made"] == 0
    yield part("returns the same group each time", same, f"the same: {seen['same']}, {seen['made']} made")
    steps = len(set(seen["steps"])) == 1
    said = f"calls and returns for meshes of one, two and three dimensions: {seen['steps']}"
    yield part("in as many Python calls for three dimensions as for one", steps, said)


def class_of(kind: type) -> Seen:
    return {
        "bases": [base.__name__ for base in kind.__mro__],
        "in_python": sorted(
            name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)
        ),
    }


def process_group_class(bench: Bench) -> Seen:
    return class_of(dist.ProcessGroup)


def a_python_subclass(bench: Bench) -> Seen:
    return class_of(ProcessLocalGroup)


@judge(process_group_class, counter=a_python_subclass)
def process_group_is_cxx(seen):
    bound = seen["bases"][1] == "pybind11_object"
    yield part("a C++ class that pybind11 binds", bound, " > ".join(seen["bases"]))
    yield part(
        "no method written in Python", not seen["in_python"], f"{len(seen['in_python'])} methods in Python"
    )


def reduce_over(how: str) -> Seen:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    sums, errors = [], []
    for dim in (0, 1):
        x = torch.ones(1) * (dist.get_rank() + 1)
        try:
            if how == "functional":
                x = funcol.all_reduce(x, "sum", (mesh, dim)) + 0
            else:
                dist.all_reduce(x, mesh=mesh, mesh_dim=dim)
            sums.append(x.item())
        except TypeError as error:
            errors.append(first_line(error))
    for dim in (0, 1):
        dist.all_reduce(x := torch.ones(1) * (dist.get_rank() + 1), group=mesh.get_group(dim))
        sums.append(x.item())
    return {"sums": sums, "errors": errors}


def functional_over_mesh(bench: Bench) -> Seen:
    return bench.run(reduce_over, "functional")[1]


def all_reduce_over_mesh(bench: Bench) -> Seen:
    return bench.run(reduce_over, "dist")[1]


@judge(functional_over_mesh, counter=all_reduce_over_mesh)
def functional_takes_mesh(seen):
    said = seen["errors"][0] if seen["errors"] else f"sums on rank 1, by mesh and by group: {seen['sums']}"
    yield part("takes (mesh, dim) for its group", not seen["errors"], said)
    same = seen["sums"] == [2, 3, 2, 3]
    yield part("reduces over mesh.get_group(dim)", same, said)

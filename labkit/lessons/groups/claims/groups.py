"""How ranks find each other, and who is in whose group: store, groups, device mesh."""

from __future__ import annotations

import datetime
import functools
import gc
import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.device_mesh import init_device_mesh

from labkit.lessons.groups.experiment import free_ports
from labkit.lessons.shared.capture import first_line
from labkit.lessons.shared.sockets import connections
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import default_store

LATER_S = 0.3
VALUE = "x" * (1 << 22)


@probe
def store(bench: Bench) -> Seen:
    """A TCPStore of our own and the one of two gloo ranks: threads, counters, waits, and the names of keys."""
    return bench.run(_store)[0]


def _store() -> Seen:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def memory() -> int:
        """The bytes that this process has in memory (RSS)."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def held(call: Callable[[], Any], release: Callable[[], Any]) -> float:
        """The seconds that a call takes which another thread lets go after a while."""
        began = time.monotonic()
        threading.Timer(LATER_S, release).start()
        call()
        return time.monotonic() - began

    half = datetime.timedelta(seconds=0.5)
    outer = default_store()
    chain, inner = [], outer
    while isinstance(inner, dist.PrefixStore):
        chain.append("PrefixStore")
        inner = inner.underlying_store
    found: Seen = {"chain": [*chain, type(inner).__name__], "new_keys": [], "sums": [], "own": []}
    before, groups = set(inner.list_keys()), []
    for _ in range(2):  # side by side: the first is used again beside the second
        dist.barrier()
        groups.append(dist.new_group([0, 1]))
        for group in groups:
            dist.all_reduce(x := torch.ones(1), group=group)
            found["sums"].append(x.item())
        mine = groups[-1].get_group_store()
        mine.set("labkit", f"group {len(groups)}")  # the same key in each
        found["own"].append([type(mine).__name__, type(mine.underlying_store).__name__])
        dist.barrier()
        found["new_keys"].append(sorted(set(inner.list_keys()) - before))
        before |= set(found["new_keys"][-1])
    part = dist.new_group([0])  # one rank of the two
    if dist.get_rank() == 0:
        mine = part.get_group_store()
        found["own"].append([type(mine).__name__, type(mine.underlying_store).__name__])
    found["same_key"] = [group.get_group_store().get("labkit").decode() for group in groups]
    one, two = dist.PrefixStore("one", outer), dist.PrefixStore("two", outer)
    dist.barrier()
    if dist.get_rank() == 0:
        one.set("barrier", "a")
        two.set("barrier", "b")
        found["prefixed"] = [one.get("barrier").decode(), two.get("barrier").decode()]
        found["under"] = [key for key in inner.list_keys() if key.endswith(("one/barrier", "two/barrier"))]
    dist.barrier()
    if dist.get_rank():
        return found
    calm, python = threads(), threading.active_count()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=half)
    found["server_threads"] = threads() - calm
    patient = datetime.timedelta(seconds=10)
    client, other, writer = (
        dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=wait)
        for wait in (half, patient, half)
    )
    found["client_threads"] = threads() - calm - found["server_threads"]
    found["python_threads"] = threading.active_count() - python
    found["connections"] = sum(server.port == there[1] for _, there in connections())
    found["listens_at"] = _listening(server.port)
    found["counts"] = [server.add("init_barrier", 1), client.add("init_barrier", 1)]
    writer.set("uid", "secret")
    found["read_by_other"] = server.get("uid").decode()
    del writer
    gc.collect()
    found["kept"] = [other.get("uid").decode() for _ in range(2)]
    (port,), late = free_ports(1), list[Any]()
    open_late = functools.partial(dist.TCPStore, "127.0.0.1", port, wait_for_workers=False, timeout=patient)
    found["held_s"] = {
        "wait": held(lambda: other.wait(["later"], patient), lambda: client.set("later", "1")),
        "get": held(lambda: other.get("last"), lambda: client.set("last", "1")),
        "connect": held(lambda: open_late(is_master=False), lambda: late.append(open_late(is_master=True))),
    }
    found["cuda_initialized"], small = torch.cuda.is_initialized(), memory()
    for i in range(8):
        other.set(f"large {i}", VALUE)
    found |= {"grown": memory() - small, "stored": 8 * len(VALUE)}
    for name, action in (
        ("missing_key", lambda: client.wait(["nobody"], half)),
        ("missing_get", lambda: client.get("nobody")),
        ("target_value", lambda: client.wait(["init_barrier"], cast(Any, 2))),
        ("target_keyword", lambda: client.wait(["init_barrier"], target_value=2)),  # type: ignore[call-overload]
        ("no_server", lambda: dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=half)),
    ):
        began = time.monotonic()
        try:
            action()
            found[name] = ""
        except Exception as error:
            found[name] = first_line(error)
    found["no_server_s"] = time.monotonic() - began  # the last of them
    return found


def _listening(port: int) -> list[str]:
    """The addresses at which a socket of this machine listens on a port, as the kernel writes them."""
    tables = (Path(f"/proc/net/{name}") for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


@judging(store)
def server_is_a_thread(seen: Seen) -> Result:
    """The rank that serves the store gets one thread for it, none of Python's, and listens at a port for clients."""
    served, own, sockets = seen["server_threads"], seen["client_threads"], len(seen["listens_at"])
    return verdict(
        served == 1
        and own == 0
        and seen["python_threads"] == 0
        and seen["connections"] >= 2
        and sockets == 1,
        f"{served} thread for the server, {own} for a client, {seen['python_threads']} of them Python's; "
        f"{sockets} socket listens at its port, with {seen['connections']} connections to it",
    )


@judging(store)
def the_server_is_bound_to_its_address(seen: Seen) -> Result:
    """The server's socket is bound to the address that it was given, 127.0.0.1, and to no other of the machine."""
    bound = seen["listens_at"]
    if not bound:
        return cannot_tell("a list of listening sockets (/proc/net/tcp)", "none listens at the port")
    everywhere = all(not address.strip("0") for address in bound)
    said = "every address of the machine" if everywhere else ", ".join(bound)
    return verdict(bound == ["0100007F"], f"given 127.0.0.1, it listens at {said}")


@judging(store)
def keeps_values_by_key(seen: Seen) -> Result:
    """What one client sets over a TCP connection, another gets, also again and after the first client has gone."""
    kept, tcp = seen["kept"], seen["connections"]
    return verdict(
        seen["read_by_other"] == "secret" and kept == ["secret"] * 2 and tcp >= 2,
        f"over {tcp} TCP connections others read {seen['read_by_other']!r}, and {kept} when its writer has gone",
    )


@judging(store)
def values_lie_in_memory(seen: Seen) -> Result:
    """The process that serves a store grows by what is stored, and neither store nor client initializes CUDA."""
    grown, stored = seen["grown"] / 2**20, seen["stored"] / 2**20
    return verdict(
        grown >= stored and not seen["cuda_initialized"] and seen["server_threads"] > 0,
        f"{stored:.0f} MiB stored: {grown:.0f} MiB more memory in the server's process; CUDA initialized: "
        f"{seen['cuda_initialized']}",
    )


@judging(store)
def requests_are_served(seen: Seen) -> Result:
    """One thread serves SET and GET between clients, ADD on one counter, and WAIT until another sets the key."""
    served = {
        "SET and GET": seen["read_by_other"] == "secret",
        "ADD": seen["counts"] == [1, 2],
        "WAIT": "imeout" in seen["missing_key"] and seen["held_s"]["wait"] >= LATER_S,
        "by one thread": seen["server_threads"] == 1,
    }
    return verdict(all(served.values()), "; ".join(f"{name}: {ok}" for name, ok in served.items()))


@judging(store)
def get_blocks_on_a_key(seen: Seen) -> Result:
    """A get of a key blocks until another client sets it, or its time is up."""
    held, missing = seen["held_s"]["get"], seen["missing_get"]
    return verdict(
        "imeout" in missing and held >= LATER_S and seen["read_by_other"] == "secret",
        f"set after {LATER_S} s: {held:.2f} s; set by nobody: {missing or 'no error'}",
    )


@judging(store)
def wait_takes_a_target_value(seen: Seen) -> Result:
    """store.wait can wait until a counter has reached a value, given by place or by name."""
    ways = [error for error in (seen["target_value"], seen["target_keyword"]) if error]
    if not all(error.startswith("TypeError") for error in ways):
        return cannot_tell("a refusal of the argument itself", "; ".join(ways))
    return verdict(
        len(ways) < 2, f"{ways[0]}; wait for a key that the last one sets" if ways else "it can, either way"
    )


@judging(store)
def connecting_needs_the_server(seen: Seen) -> Result:
    """A client blocks in connecting until rank 0 serves, or its time is up."""
    late, refused, waited = seen["held_s"]["connect"], seen["no_server"], seen["no_server_s"]
    return verdict(
        late >= LATER_S and bool(refused) and waited >= 0.5,
        f"a server that comes after {LATER_S} s: connected after {late:.2f} s; without one, after {waited:.2f} s: "
        f"{refused or 'connected to nobody'}",
    )


@judging(store)
def prefixes_keep_keys_apart(seen: Seen) -> Result:
    """The same key of two PrefixStores around one TCPStore is two keys there, with the prefixes in front."""
    under = sorted(key.split("/")[-2] for key in seen["under"])
    return verdict(
        seen["prefixed"] == ["a", "b"] and under == ["one", "two"] and seen["chain"][-1] == "TCPStore",
        f"'barrier' under two prefixes: {seen['prefixed']}; in the {seen['chain'][-1]}: {', '.join(seen['under'])}",
    )


@judging(store)
def groups_have_prefixes_of_their_own(seen: Seen) -> Result:
    """The store of each new group, of all ranks or of one, is a PrefixStore around the world's, with its own prefix."""
    prefixes = [{re.split("//(?:cpu//|labkit)", key)[0] for key in keys} for keys in seen["new_keys"]]
    own, chain = seen["own"], seen["chain"]
    keys = [", ".join(keys) or "no key" for keys in seen["new_keys"]]
    wrapped = own == [["PrefixStore"] * 2] * 3 and chain[0] == "PrefixStore" and chain[-1] == "TCPStore"
    apart = [len(mine) for mine in prefixes] == [1, 1] and prefixes[0] != prefixes[1]
    return verdict(
        wrapped and apart and all(any(key.endswith("labkit") for key in keys) for keys in seen["new_keys"]),
        f"{' around '.join(own[0][:1] + chain)}; keys of a new group {keys[0]}; of another {keys[1]}",
    )


@judging(store)
def groups_do_not_collide(seen: Seen) -> Result:
    """Two groups keep the same key with values of their own, and both work side by side."""
    values, sums = seen["same_key"], seen["sums"]
    return verdict(
        values == ["group 1", "group 2"] and sums == [2.0] * 3,
        f"one key in the stores of both: {values}; right sums over them: {sums.count(2.0)} of 3",
    )


@probe
def mesh(bench: Bench) -> Seen:
    """A mesh of two by four on eight ranks that exchange nothing: its tensor, coordinates, and groups."""
    found = bench.run(_mesh, ranks=8, backend="fake")  # nothing is sent, so eight cost no more than two
    every = {name: [found[rank][name] for rank in range(8)] for name in ("mine", "coordinate")}
    return {**found[5], "groups": every["mine"], "coordinates": every["coordinate"]}


def _mesh() -> Seen:
    made: list[list[int]] = []
    new_group = device_mesh.new_group

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(list(options.get("ranks") or arguments[0]))
        return new_group(*arguments, **options)

    device_mesh.new_group = counted
    try:
        grid = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        by_grid = sorted(made)
        shapes = ((8,), (2, 4), (2, 2, 2))
        grids = [init_device_mesh("cpu", s, mesh_dim_names=tuple("abc"[-len(s) :])) for s in shapes]
        before = len(made)
        steps = {name: [_steps(one, axis) for one in grids] for name, axis in (("last", -1), ("named", "c"))}
    finally:
        device_mesh.new_group = new_group
    with torch.device("meta"):  # where tensors are made unless a device is named
        found_on = str(init_device_mesh("cpu", (8,)).mesh.device)
    of_gpus = init_device_mesh("cuda", (8,))  # also where there is none
    members = {name: dist.get_process_group_ranks(grid.get_group(name)) for name in ("dp", "tp")}
    kind = type(dist.group.WORLD)
    two = [grid.get_group(0), grid.get_group(1)]
    return {
        "steps": steps,
        "made_by_lookups": len(made) - before,
        "axes": [one.mesh.ndim for one in grids],
        "flat": dist.get_process_group_ranks(dist.group.WORLD),
        "distinct": two[0] is not two[1] and all(isinstance(one, dist.ProcessGroup) for one in two),
        "in_python": sum(isinstance(member, types.FunctionType) for member in vars(kind).values()),
        "made_of": str(vars(kind)["__init__"].__doc__).partition("self: ")[2].partition(",")[0],
        "tensor": grid.mesh.tolist(),
        "tensor_device": str(grid.mesh.device),
        "under_meta": found_on,
        "of_gpus": [of_gpus.device_type, str(of_gpus.mesh.device)],
        "coordinate": list(grid.get_coordinate() or ()),
        "mine": members,
        "cached": all(
            grid.get_group(i) is grid.get_group(i) is grid.get_group(n) for i, n in enumerate(members)
        ),
        "pseudo_code": [grid.mesh.select(0, i).flatten().tolist() for i in range(2)],
        "bases": [f"{base.__module__}.{base.__name__}" for base in kind.__mro__],
        "is_tensor": isinstance(grid.mesh, torch.Tensor),
        "made_by_new_group": by_grid,
    }


def _steps(grid: Any, axis: int | str) -> int:
    """The calls and returns, those of C functions included, of looking up the group of an axis; -1 is the last one."""
    axis = grid.ndim - 1 if axis == -1 else axis
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        grid.get_group(axis)
    finally:
        sys.setprofile(None)
    return len(events)


@judging(mesh)
def a_group_is_flat_and_a_mesh_a_grid(seen: Seen) -> Result:
    """A process group is a list of eight ranks; meshes arrange the same ranks along one axis, two and three."""
    return verdict(
        seen["flat"] == list(range(8))
        and seen["axes"] == [1, 2, 3]
        and seen["tensor"] == [[0, 1, 2, 3], [4, 5, 6, 7]],
        f"a group: {seen['flat']}; a mesh: {seen['tensor']}; axes of other meshes: {seen['axes']}",
    )


@judging(mesh)
def grid_of_ranks(seen: Seen) -> Result:
    """A mesh holds the rank numbers in a tensor, where every rank stands at its own coordinate."""
    grid = seen["tensor"]
    found = [grid[row][column] for row, column in seen["coordinates"]]
    return verdict(
        seen["is_tensor"] and found == list(range(8)), f"{grid}; at the coordinates of ranks 0 to 7: {found}"
    )


@judging(mesh)
def grid_lives_on_the_cpu(seen: Seen) -> Result:
    """The tensor of ranks is on the CPU, also of a mesh of GPUs, and where tensors are made elsewhere by default."""
    usual, other, (kind, of_gpus) = seen["tensor_device"], seen["under_meta"], seen["of_gpus"]
    return verdict(
        seen["is_tensor"] and usual == other == of_gpus == "cpu" and kind == "cuda",
        f"device {usual}; where the default device is 'meta': {other}; of a mesh of {kind!r}: {of_gpus}",
    )


@judging(mesh)
def columns_are_the_first_axis(seen: Seen) -> Result:
    """The groups of axis 0 are the columns: [0, 4], [1, 5], [2, 6], [3, 7]."""
    groups = [seen["groups"][rank]["dp"] for rank in range(4)]
    return verdict(groups == [[0, 4], [1, 5], [2, 6], [3, 7]], f"{groups}")


@judging(mesh)
def rows_are_the_second_axis(seen: Seen) -> Result:
    """The groups of axis 1 are the rows: [0, 1, 2, 3], [4, 5, 6, 7]."""
    groups = [seen["groups"][rank]["tp"] for rank in (0, 4)]
    return verdict(groups == [[0, 1, 2, 3], [4, 5, 6, 7]], f"{groups}")


@judging(mesh)
def a_rank_has_a_group_an_axis(seen: Seen) -> Result:
    """Every rank has a group object for each axis; its two groups share this rank only, and neither is the world."""
    mine = [[set(group) for group in by_axis.values()] for by_axis in seen["groups"]]
    right = [len(two) == 2 and set.intersection(*two) == {rank} for rank, two in enumerate(mine)]
    largest = max(len(group) for two in mine for group in two)
    return verdict(
        all(right) and largest < len(mine) and seen["distinct"],
        f"{sorted({len(two) for two in mine})} groups a rank, of at most {largest} of {len(mine)} ranks; "
        f"{sum(right)} ranks are all that their two groups share",
    )


@judging(mesh)
def rank_five_is_one_one(seen: Seen) -> Result:
    """Rank 5 of a two by four mesh stands at (1, 1)."""
    return verdict(seen["coordinate"] == [1, 1], f"{tuple(seen['coordinate'])}")


@judging(mesh)
def rank_five_talks_to(seen: Seen) -> Result:
    """On axis 0 rank 5 shares a group with rank 1, on axis 1 with 4, 6 and 7: groups made before, always the same."""
    mine, made = seen["groups"][5], seen["made_by_lookups"]
    return verdict(
        mine == {"dp": [1, 5], "tp": [4, 5, 6, 7]} and seen["cached"] and not made,
        f"axis 0 {mine['dp']}, axis 1 {mine['tp']}, {'the same' if seen['cached'] else 'other'} objects each time",
    )


@judging(mesh)
def coordinates_lead_to_groups(seen: Seen) -> Result:
    """A rank's group of axis 0 is the column that it stands in, its group of axis 1 the row; rank 5 is at (1, 1)."""
    grid = seen["tensor"]
    expected = [{"dp": [row[j] for row in grid], "tp": grid[i]} for i, j in seen["coordinates"]]
    right = [mine == groups for mine, groups in zip(seen["groups"], expected, strict=True)]
    return verdict(
        all(right) and seen["coordinate"] == [1, 1],
        f"{sum(right)} of {len(right)} ranks have the groups of their column and row; rank 5 is at "
        f"{tuple(seen['coordinate'])} with {seen['groups'][5]['dp']} and {seen['groups'][5]['tp']}",
    )


@judging(mesh)
def groups_are_made_once(seen: Seen) -> Result:
    """Groups are made with the mesh and only looked up later, those of the last axis in as many steps for any mesh."""
    steps, made, cached = seen["steps"], seen["made_by_lookups"], seen["cached"]
    return verdict(
        cached and not made and all(len(set(counts)) == 1 for counts in steps.values()),
        f"{'the same object twice, by name and by number' if cached else 'not the same'}; {made} groups made by "
        f"looking; calls and returns of a look for the last axis of 1, 2 and 3: {steps['last']}, by its name "
        f"{steps['named']}",
    )


@judging(mesh)
def select_gives_the_axis_group(seen: Seen) -> Result:
    """mesh.select(axis, i) are the ranks of a group of that axis, as the pseudo-code has it."""
    real = [seen["groups"][rank]["dp"] for rank in range(4)]
    return verdict(
        all(group in real for group in seen["pseudo_code"]),
        f"select(0, i) gives {seen['pseudo_code']}, which are groups of axis 1; those of axis 0 are {real}",
    )


@judging(mesh)
def group_wraps_a_cxx_class(seen: Seen) -> Result:
    """A process group in Python is c10d's C++ class, bound by pybind11, without a method written in Python."""
    bound = any("pybind11" in base for base in seen["bases"])
    return verdict(
        bound and not seen["in_python"] and seen["made_of"].endswith("_distributed_c10d.ProcessGroup"),
        f"{' > '.join(base.rpartition('.')[2] for base in seen['bases'][:3])}: {seen['made_of']}, with "
        f"{seen['in_python']} methods in Python",
    )


@judging(mesh)
def groups_come_from_new_group(seen: Seen) -> Result:
    """Making a mesh calls new_group once for every row and every column."""
    expected = sorted([[0, 1, 2, 3], [4, 5, 6, 7], [0, 4], [1, 5], [2, 6], [3, 7]])
    made = seen["made_by_new_group"]
    return verdict(made == expected, f"{len(made)} calls of new_group, on {made or 'no ranks'}")

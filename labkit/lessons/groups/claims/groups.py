"""How ranks find each other, and who is in whose group: store, groups, device mesh."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.device_mesh import init_device_mesh

from labkit.lessons.shared.capture import first_line
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import default_store

ADDS = 500


@probe
def store(bench: Bench) -> Seen:
    """A TCPStore of our own and the one of two gloo ranks: threads, counters, waits, and the names of keys."""
    return bench.run(_store)[0]


def _store() -> Seen:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    half = datetime.timedelta(seconds=0.5)
    outer = default_store()
    chain, inner = [], outer
    while isinstance(inner, dist.PrefixStore):
        chain.append("PrefixStore")
        inner = inner.underlying_store
    before = sorted(inner.list_keys())
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    after = sorted(inner.list_keys())
    dist.barrier()
    found: Seen = {"chain": [*chain, type(inner).__name__], "new_keys": [k for k in after if k not in before]}
    one, two = dist.PrefixStore("one", outer), dist.PrefixStore("two", outer)
    mine = [outer.add("labkit-counted", 1) for _ in range(ADDS)]  # both ranks at the same time
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, mine)
    found["added"] = sorted(sum(everyone, [])) == list(range(1, 2 * ADDS + 1))
    found["took_turns"] = max(everyone[0]) < min(everyone[1]) or max(everyone[1]) < min(everyone[0])
    if dist.get_rank() == 0:
        one.set("barrier", "a")
        two.set("barrier", "b")
        found["prefixed"] = [one.get("barrier").decode(), two.get("barrier").decode()]
    dist.barrier()
    if dist.get_rank():
        return found
    calm = threads()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=half)
    found["server_threads"] = threads() - calm
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=half)
    found["client_threads"] = threads() - calm - found["server_threads"]
    found["counts"] = [server.add("init_barrier", 1), client.add("init_barrier", 1)]
    client.set("uid", "secret")
    found["read_by_other"] = server.get("uid").decode()
    for name, action in (
        ("missing_key", lambda: client.wait(["nobody"], half)),
        ("missing_get", lambda: client.get("nobody")),
        ("target_value", lambda: client.wait(["init_barrier"], cast(Any, 2))),
        ("no_server", lambda: dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=half)),
    ):
        try:
            action()
            found[name] = ""
        except Exception as error:
            found[name] = first_line(error)
    return found


@judging(store)
def server_is_a_thread(seen: Seen) -> Result:
    """The rank that serves the store gets a thread for it, outside Python; a client connects without one."""
    return verdict(
        seen["server_threads"] >= 1 and seen["client_threads"] == 0,
        f"{seen['server_threads']} thread for the server, {seen['client_threads']} for a client",
    )


@judging(store)
def add_counts_atomically(seen: Seen) -> Result:
    """store.add adds to one counter for all clients, and loses none of what two processes add at the same time."""
    said = f"two processes add 1 {ADDS} times each: {'every' if seen['added'] else 'not every'} sum comes out once"
    if seen["took_turns"]:
        return cannot_tell("processes that add at the same time", said)
    return verdict(seen["added"], said)


@judging(store)
def get_shares_a_key(seen: Seen) -> Result:
    """What one client sets, another gets: the way in which a unique id reaches every rank."""
    return verdict(seen["read_by_other"] == "secret", f"the other side reads {seen['read_by_other']!r}")


@judging(store)
def requests_are_served(seen: Seen) -> Result:
    """The store serves SET and GET between clients, ADD on one counter, and WAIT, which blocks until the timeout."""
    served = {
        "SET and GET": seen["read_by_other"] == "secret",
        "ADD": seen["counts"] == [1, 2],
        "WAIT": "imeout" in seen["missing_key"],
    }
    return verdict(all(served.values()), "; ".join(f"{name}: {ok}" for name, ok in served.items()))


@judging(store)
def get_blocks_on_a_key(seen: Seen) -> Result:
    """A get of a key that nobody has set blocks until the timeout; of one that is set it returns the value."""
    return verdict(
        "imeout" in seen["missing_get"] and seen["read_by_other"] == "secret",
        seen["missing_get"] or "it returned at once",
    )


@judging(store)
def wait_takes_a_target_value(seen: Seen) -> Result:
    """store.wait can wait until a counter has reached a value."""
    return verdict(
        not seen["target_value"],
        f"{seen['target_value']}; wait for a key that the last one sets"
        if seen["target_value"]
        else "it can",
    )


@judging(store)
def connecting_needs_the_server(seen: Seen) -> Result:
    """A client blocks in connecting until rank 0 serves, or its time is up."""
    return verdict(bool(seen["no_server"]), seen["no_server"] or "connected to nobody")


@judging(store)
def prefixes_keep_keys_apart(seen: Seen) -> Result:
    """The same key under two prefixes holds two values."""
    return verdict(seen["prefixed"] == ["a", "b"], f"'barrier' under two prefixes: {seen['prefixed']}")


@judging(store)
def groups_share_one_store(seen: Seen) -> Result:
    """Groups wrap one store in a PrefixStore, so that a new group's keys have a prefix of their own."""
    own = [key for key in seen["new_keys"] if "/" in key]
    return verdict(
        seen["chain"][-1] == "TCPStore" and "PrefixStore" in seen["chain"] and bool(own),
        f"{' around '.join(seen['chain'])}; a new group added {', '.join(seen['new_keys'][:2]) or 'no key'}",
    )


@probe
def mesh(bench: Bench) -> Seen:
    """A mesh of two by four on eight ranks that exchange nothing: its tensor, coordinates, and groups."""
    found = bench.run(_mesh, ranks=8, backend="fake")  # nothing is sent, so eight cost no more than two
    return {**found[5], "groups": [found[rank]["mine"] for rank in range(8)]}


def _mesh() -> Seen:
    made: list[list[int]] = []
    new_group = device_mesh.new_group

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(list(options.get("ranks") or arguments[0]))
        return new_group(*arguments, **options)

    device_mesh.new_group = counted
    try:
        grid = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    finally:
        device_mesh.new_group = new_group
    with torch.device("meta"):  # where tensors are made unless a device is named
        found_on = str(init_device_mesh("cpu", (8,)).mesh.device)
    members = {name: dist.get_process_group_ranks(grid.get_group(name)) for name in ("dp", "tp")}
    kind = type(dist.group.WORLD)
    x = torch.ones(1)
    try:
        dist.all_reduce(x, mesh=grid, mesh_dim=0)  # type: ignore[call-arg]
        given = ""
    except TypeError as error:
        given = first_line(error)
    dist.all_reduce(x, group=grid.get_group(0))
    return {
        "mesh_dim": given,
        "by_group": True,
        "tensor": grid.mesh.tolist(),
        "tensor_device": str(grid.mesh.device),
        "under_meta": found_on,
        "coordinate": list(grid.get_coordinate() or ()),
        "mine": members,
        "cached": grid.get_group("tp") is grid.get_group("tp") and grid.get_group(1) is grid.get_group("tp"),
        "pseudo_code": [grid.mesh.select(0, i).flatten().tolist() for i in range(2)],
        "bases": [f"{base.__module__}.{base.__name__}" for base in kind.__mro__],
        "is_tensor": isinstance(grid.mesh, torch.Tensor),
        "made_by_new_group": sorted(made),
    }


@judging(mesh)
def grid_of_ranks(seen: Seen) -> Result:
    """A mesh of two by four holds the rank numbers in a two by four tensor."""
    return verdict(seen["tensor"] == [[0, 1, 2, 3], [4, 5, 6, 7]], f"{seen['tensor']}")


@judging(mesh)
def grid_lives_on_the_cpu(seen: Seen) -> Result:
    """The mesh's tensor of ranks is on the CPU, also where tensors are made on another device by default."""
    usual, other = seen["tensor_device"], seen["under_meta"]
    return verdict(
        seen["is_tensor"] and usual == other == "cpu",
        f"device {usual}; where the default device is 'meta': {other}",
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
    """Every rank has one group for each axis."""
    counts = {len(mine) for mine in seen["groups"]}
    inside = all(rank in group for rank, mine in enumerate(seen["groups"]) for group in mine.values())
    return verdict(counts == {2} and inside, f"{sorted(counts)} groups a rank")


@judging(mesh)
def rank_five_is_one_one(seen: Seen) -> Result:
    """Rank 5 of a two by four mesh stands at (1, 1)."""
    return verdict(seen["coordinate"] == [1, 1], f"{tuple(seen['coordinate'])}")


@judging(mesh)
def rank_five_talks_to(seen: Seen) -> Result:
    """On axis 0 rank 5 shares a group with rank 1, on axis 1 with 4, 6 and 7."""
    mine = seen["groups"][5]
    return verdict(mine == {"dp": [1, 5], "tp": [4, 5, 6, 7]}, f"axis 0 {mine['dp']}, axis 1 {mine['tp']}")


@judging(mesh)
def coordinates_lead_to_groups(seen: Seen) -> Result:
    """A rank's group of axis 0 is the column that it stands in, its group of axis 1 the row; rank 5 is at (1, 1)."""
    grid = seen["tensor"]
    expected = [
        {"dp": [row[j] for row in grid], "tp": grid[i]} for i in range(len(grid)) for j in range(len(grid[i]))
    ]
    right = [mine == groups for mine, groups in zip(seen["groups"], expected, strict=True)]
    return verdict(
        all(right) and seen["coordinate"] == [1, 1],
        f"{sum(right)} of {len(right)} ranks have the groups of their column and row; rank 5 is at "
        f"{tuple(seen['coordinate'])} with {seen['groups'][5]['dp']} and {seen['groups'][5]['tp']}",
    )


@judging(mesh)
def groups_are_made_once(seen: Seen) -> Result:
    """Asking a mesh for an axis' group gives the same group every time."""
    return verdict(
        seen["cached"], "the same object twice, by name and by number" if seen["cached"] else "not the same"
    )


@judging(mesh)
def collectives_take_a_mesh_axis(seen: Seen) -> Result:
    """A collective takes the mesh and mesh_dim and finds the axis' group by itself."""
    return verdict(
        not seen["mesh_dim"],
        f"{seen['mesh_dim']}; group=mesh.get_group(0) works" if seen["mesh_dim"] else "it does",
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
    """A process group in Python is the C++ class c10d::ProcessGroup underneath."""
    bound = any("pybind11" in base for base in seen["bases"])
    return verdict(bound, " > ".join(base.rpartition(".")[2] for base in seen["bases"][:3]))


@judging(mesh)
def groups_come_from_new_group(seen: Seen) -> Result:
    """Making a mesh calls new_group once for every row and every column."""
    expected = sorted([[0, 1, 2, 3], [4, 5, 6, 7], [0, 4], [1, 5], [2, 6], [3, 7]])
    made = seen["made_by_new_group"]
    return verdict(made == expected, f"{len(made)} calls of new_group, on {made or 'no ranks'}")

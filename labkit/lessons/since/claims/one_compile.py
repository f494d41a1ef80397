"""Graphs that are the same on all ranks, what carries them to other ranks, and ranks in one process."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import torch
import torch.distributed as dist

from labkit import lessons
from labkit.lessons.shared.outcomes import all_of
from labkit.lessons.since.experiment import carry
from labkit.ranks import Ranks
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict
from labkit.torch_compat import funcol, functional_op, no_compile_caches, only_written, patched

program = lessons.program("since")

NAMES = ("uneven shards", "a group of its own", "a sub mesh", "slice by dist.get_rank()")
WAYS = (("aot_compile", "mesh"), ("aot_compile", "DTensor"), ("disk cache", "mesh"), ("precompile", "mesh"))
SIZE, CPU = 4, torch.device("cpu")


@probe
def graphs(bench: Bench) -> Seen:
    """How many different graphs four ranks have, by program and switch; its place; and a call with another group."""
    ranks = bench.ranks(SIZE, "fake")
    counts = {
        name: {
            word: _number(ranks.run(quietly, _text, name, on)) for word, on in (("off", False), ("on", True))
        }
        for name in NAMES
    }
    calls = {name: _calls(ranks.run(quietly, _text, name, True, ranks=0)[0]) for name in NAMES}
    codes = {
        how: [len(set(ranks.run(quietly, _code, how, on))) for on in (False, True)] for how in ("none", "all")
    }
    found = {"counts": counts, "calls": calls, "codes": codes, **bench.run(_place)[0]}
    return found | {"by_group": bench.run(_by_group, ranks=SIZE)[0]}


def _calls(text: str) -> list[str]:
    """What a graph with the switch asks the rank that runs it, and names of groups that it holds as constants."""
    asked = ("_runtime_compute_coordinate_on_dim", "mesh_get_process_group", "_opaque_obj0")
    lines = [line for line in text.splitlines() if "_c10d_functional.all" in line]
    return [w for w in asked if w in text] + [
        f"'{n}'" for line in lines for n in re.findall(r"'(\d+)'", line)
    ]


def _code(how: str, on: bool) -> str:
    """On a rank: Inductor's code of two all-gathers, put into one bucket or not; written, and not compiled."""

    def two(x, y, mesh):
        return program.all_gather(x, mesh), program.all_gather(y, mesh)

    torch.compiler.reset()
    setting = {"bucket_all_gathers_fx": how}
    with program.switched(on), patched("inductor.config", **setting), no_compile_caches(), torch.no_grad():
        mesh = program.line_mesh()
        with only_written() as written, contextlib.suppress(RuntimeError):
            torch.compile(two)(torch.ones(4, 2), torch.ones(4, 3), mesh)
    return written[0].partition("def call(")[2].partition("runner = ")[0]


def _by_group() -> dict[str, list[float]]:
    """One compiled function called with a group of this rank alone, then with all four: its sums of twos."""
    found, groups = {}, (program.own_group(), dist.group.WORLD)
    for word, on in (("off", False), ("on", True)):
        torch.compiler.reset()
        run = torch.compile(program.summed, backend="aot_eager")
        with program.switched(on), torch.no_grad():
            found[word] = [float((run(torch.ones(1), group) + 0)[0]) for group in groups]
    return found


def _text(name: str, on: bool) -> str:
    try:
        return program.graphs_of(name, on)
    except Exception as error:  # what a torch makes of a program is the finding
        return f"failed: {program.first_line(error)}"


def _number(texts: Any) -> int | str:
    found = set(texts)
    failed = next((text for text in found if text.startswith("failed")), "")
    return failed or len(found)


def _place() -> Seen:
    new = hasattr(torch.compiler.config, "compile_on_one_rank")
    default = (torch.compiler.config if new else torch.distributed.config).compile_on_one_rank
    x = program.replicated(5)
    with program.switched():
        old = torch.distributed.config.compile_on_one_rank
        _, y = program.captured(program.there_and_back, x)
    with torch.distributed.config.patch(compile_on_one_rank=True):
        both = new and getattr(torch.compiler.config, "compile_on_one_rank")  # noqa: B009
    found = {"new": new, "default": default, "old_name_is_on": old, "new_name_is_on": both}
    return found | {"right": torch.equal(y, x.to_local() * 2)}


@probe
def carried(bench: Bench) -> Seen:
    """What became on four ranks of what one process compiled, by store, form and switch."""
    found: dict[str, Any] = {}
    # new processes on both sides: the names of groups are counted up
    with (
        Ranks(SIZE, device="cpu", backend="fake", quiet=True) as one,
        Ranks(SIZE, device="cpu", backend="gloo", quiet=True, stall=20) as four,
    ):
        for store, form in WAYS:
            for on in (False, True):
                if store not in program.STORES:
                    continue
                seen = carry(program, one, four, (store, form, on), quietly)
                outcomes, said = zip(*seen, strict=True)
                key = f"{store}, {form}, {'on' if on else 'off'}"
                found[key] = {"outcomes": list(outcomes), "said": next(filter(None, said), "")}
    last = bench.ranks(SIZE, "fake").run(quietly, program.empty_shard, ranks=SIZE - 1)[SIZE - 1]
    return {"ways": found, "stores": list(program.STORES), "without_rows": last}


@probe
def agreeing(bench: Bench) -> Seen:
    """The sizes in the graphs of two ranks with 4 and 6 rows: alone, together, and together with mends."""
    alone, together = (list(bench.run(program.first_sizes, on)) for on in (False, True))
    with Ranks(
        2, device="cpu", backend="gloo", quiet=True, stall=20
    ) as two:  # the mends stay in these processes
        mended = list(two.run(quietly, program.first_sizes, True, program.mend))
    return {"alone": alone, "together": together, "mended": mended}


@probe
def one_process(bench: Bench) -> Seen:
    """LocalTensorMode beside four real ranks: a sum, what the rank is, and a sum with the switch on."""
    found = bench.run(_local, ranks=SIZE, backend="fake")[0]
    real = list(bench.run(_real, ranks=SIZE))
    return {**found, "real": {name: [one[name] for one in real] for name in real[0]}}


def _local() -> Seen:
    with program.LocalTensorMode(SIZE) as mode, torch.no_grad():
        numbers = mode.rank_map(lambda rank: torch.full((1,), float(rank)))
        total = funcol.all_reduce(numbers, "sum", dist.group.WORLD) + 0
        parts = {"sum": total, "all_gather": program.all_gather(numbers, dist.group.WORLD) + 0}
        whole = mode.rank_map(lambda rank: torch.arange(float(SIZE)) + rank)
        parts["reduce_scatter"] = funcol.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD) + 0
        rank = torch.arange(float(SIZE)).narrow(0, dist.get_rank(), 1) + 0 * numbers
        with program.switched():
            try:
                switched = _values(funcol.all_reduce(numbers, "sum", dist.group.WORLD) + 0)
            except (RuntimeError, TypeError) as error:
                switched = program.first_line(error)
        by_name = {name: [part.tolist() for part in y._local_tensors.values()] for name, y in parts.items()}
        schema = str(functional_op("all_reduce").default._schema)
        return {
            "parts": by_name,
            "rank": _values(rank),
            "switched": switched,
            "takes_a_name": "str group" in schema,
        }


def _values(y: Any) -> list[float]:
    return [float(part[0]) for part in y._local_tensors.values()]


def _real() -> dict[str, list[float]]:
    me, world = float(dist.get_rank()), dist.group.WORLD
    number, whole = torch.full((1,), me), torch.arange(float(SIZE)) + me
    found = {"sum": funcol.all_reduce(number, "sum", world), "all_gather": program.all_gather(number, world)}
    found["reduce_scatter"] = funcol.reduce_scatter_tensor(whole, "sum", 0, world)
    return {name: (y + 0).tolist() for name, y in found.items()}


@probe
def layers(bench: Bench) -> Seen:
    """The switch of TorchComms: where it stands, and what it makes of a group."""
    return bench.run(_comms)[0]


def _comms() -> Seen:
    config = torch.distributed.config
    return {
        "default": bool(config.use_torchcomms),
        "group": type(dist.new_group()._get_backend(CPU)).__name__,
    }


def _equal(seen: Seen, name: str, asks: str = "") -> Result:
    """One graph with the switch, which asks by `asks` and holds no group's name; several without it."""
    off, on = (seen["counts"][name][word] for word in ("off", "on"))
    said = f"different graphs of {SIZE} ranks: {off} without the switch, {on} with it"
    calls = seen["calls"][name]
    asked = not asks or (asks in calls and not any(call.startswith("'") for call in calls))
    return verdict(on == 1 and off != 1 and asked, f"{said}, with {', '.join(calls) or 'nothing asked'}")


@judging(graphs)
def coordinates_are_operators(seen: Seen) -> Result:
    """With the switch uneven shards give one graph, which asks for the coordinate, and right numbers; else several."""
    found = _equal(seen, "uneven shards", "_runtime_compute_coordinate_on_dim")
    return found if seen["right"] else verdict(False, f"{found.measured}; wrong numbers")


@judging(graphs)
def groups_are_inputs(seen: Seen) -> Result:
    """A group of its own on every rank gives one graph with the switch, which another group can be given to."""
    off, on = (seen["by_group"][word] for word in ("off", "on"))
    said = f"compiled once and called with a group of one rank, then of {SIZE}: {on} with the switch, {off} without"
    return all_of(
        _equal(seen, "a group of its own", "_opaque_obj0"), verdict(on == off == [2.0, 2.0 * SIZE], said)
    )


@judging(graphs)
def groups_of_meshes_are_looked_up(seen: Seen) -> Result:
    """The group of a sub mesh gives one graph with the switch, and several without it."""
    return _equal(seen, "a sub mesh", "mesh_get_process_group")


@judging(graphs)
def ranks_in_python_stay(seen: Seen) -> Result:
    """A slice by dist.get_rank() gives one graph with the switch."""
    return _equal(seen, "slice by dist.get_rank()")


@judging(graphs)
def off_by_default(seen: Seen) -> Result:
    """The switch is off unless it is asked for."""
    return verdict(seen["default"] is False, f"the default is {seen['default']}")


@judging(graphs)
def moved_with_its_old_name(seen: Seen) -> Result:
    """The switch stands in torch.compiler.config, and its old name in torch.distributed.config follows it."""
    if not seen["new"]:
        return cannot_tell("torch 2.14, the first that has it there", "it stands in torch.distributed.config")
    old, new = seen["old_name_is_on"], seen["new_name_is_on"]
    follows = "follows" if old else "does not follow"
    said = f"it stands in torch.compiler.config; the old name {follows}, and {'sets' if new else 'does not set'} it"
    return verdict(old and new, said)


@judging(graphs)
def buckets_hold_the_rank(seen: Seen) -> Result:
    """With the switch, ranks have one code for two all-gathers, and several where a pass makes one of the two."""
    apart, bucketed = (seen["codes"][how][1] for how in ("none", "all"))
    said = f"different codes of {SIZE} ranks with the switch: {apart} for two all-gathers, {bucketed} in a bucket"
    return verdict(apart == 1 < bucketed, said)


def _everywhere(seen: Seen, store: str, form: str) -> Result:
    if store not in seen["stores"]:
        return cannot_tell(f"this torch has no {store}")
    found = seen["ways"][f"{store}, {form}, on"]
    said = f"; {found['said']}" if found["said"] else ""
    return verdict(set(found["outcomes"]) == {"right"}, f"by rank: {', '.join(found['outcomes'])}{said}")


@judging(carried)
def one_graph_runs_on_all(seen: Seen) -> Result:
    """What one process compiled by aot_compile with the switch on runs on all ranks; without it, not on all."""
    found = _everywhere(seen, "aot_compile", "mesh")
    off = set(seen["ways"]["aot_compile, mesh, off"]["outcomes"])
    return (
        found if off != {"right"} else verdict(False, f"{found.measured}; and so it does without the switch")
    )


@judging(carried)
def dtensor_runs_on_all(seen: Seen) -> Result:
    """A DTensor program that one process compiled by aot_compile with the switch on runs on all ranks."""
    return _everywhere(seen, "aot_compile", "DTensor")


@judging(carried)
def caches_hit_on_all(seen: Seen) -> Result:
    """Ranks find in the disk cache what one process compiled with the switch on."""
    return _everywhere(seen, "disk cache", "mesh")


@judging(carried)
def precompiled_runs_on_all(seen: Seen) -> Result:
    """What one process captured by torch.compiler.precompile with the switch on runs on all ranks."""
    return _everywhere(seen, "precompile", "mesh")


@judging(carried)
def shards_may_be_empty(seen: Seen) -> Result:
    """Inductor's code for five rows runs on the rank of four that has no rows."""
    return verdict(seen["without_rows"] == "ran", f"the rank without rows: {seen['without_rows']}")


@judging(agreeing)
def sizes_are_agreed(seen: Seen) -> Result:
    """Ranks with other sizes compile static graphs alone, and the same dynamic graph together."""
    alone, together, mended = (seen[how] for how in ("alone", "together", "mended"))

    def agreed(found: list[Any]) -> bool:
        return found[0] == found[1] and isinstance(found[0], list) and "(4" not in found[0][0]

    if alone[0] == alone[1]:
        return verdict(False, f"already alone: {alone}")
    if agreed(together):
        return verdict(True, f"together: {together[0][0]} on both")
    if agreed(mended):
        return cannot_tell(f"an accelerator: on plain gloo, {together[0]}", f"mended: {mended[0][0]} on both")
    return verdict(False, f"together: {together}; mended: {mended}")


@judging(one_process)
def one_process_adds_up(seen: Seen) -> Result:
    """A sum, an all-gather and a reduce-scatter in one process give each rank what real ranks get."""
    same = [name for name in seen["real"] if seen["parts"][name] == seen["real"][name]]
    said = f"as over gloo: {', '.join(same) or 'none'}; the sum in one process: {seen['parts']['sum']}"
    return verdict(len(same) == len(seen["real"]) == 3, said)


@judging(one_process)
def every_rank_asks_itself(seen: Seen) -> Result:
    """In one process dist.get_rank() gives each rank its own number."""
    return verdict(seen["rank"] == [float(rank) for rank in range(SIZE)], f"ranks seen: {seen['rank']}")


@judging(one_process)
def the_switch_works_in_one_process(seen: Seen) -> Result:
    """In one process a functional collective takes a process group with the switch on."""
    said = f"with the switch: {seen['switched']}"
    if seen["takes_a_name"]:
        return cannot_tell("a torch whose operators take a group, and not its name", said)
    return verdict(seen["switched"] == [value for (value,) in seen["real"]["sum"]], said)


@judging(layers)
def torchcomms_is_opt_in(seen: Seen) -> Result:
    """The setting for TorchComms is off by default, and a group of gloo is torch's own."""
    right = seen["default"] is False and seen["group"] == "ProcessGroupGloo"
    return verdict(right, f"the default is {seen['default']}; a group of gloo is a {seen['group']}")

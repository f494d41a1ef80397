"""Graphs that are the same on all ranks, what carries them to other ranks, and ranks in one process."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import torch
import torch.distributed as dist

from labkit import lessons
from labkit.lessons.shared.capture import Capture
from labkit.lessons.shared.outcomes import all_of
from labkit.lessons.since.experiment import carry
from labkit.ranks import Ranks
from labkit.study.checks import HOLDS, Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict
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
    codes: Seen = {}
    offsets: list[list[int]] = []
    for how in ("none", "all"):
        texts = [list(ranks.run(quietly, _code, how, on)) for on in (False, True)]
        codes[how] = [len(set(of_ranks)) if all(of_ranks) else 0 for of_ranks in texts]
        offsets = [[int(n) for n in OFFSET.findall(text)] for text in texts[1]]
        codes["without offsets"] = len({OFFSET.sub("", text) for text in texts[1]})
    kept = {name: list(ranks.run(quietly, _kept, name)) for name in NAMES}
    found = {
        "counts": counts,
        "calls": calls,
        "codes": codes,
        "offsets": offsets,
        "kept": kept,
    }
    places = list(bench.run(_place, ranks=SIZE))
    found |= {**places[0], "right": all(place["right"] for place in places)}
    found["as it is"] = _number(ranks.run(quietly, _text, NAMES[0]))
    return found | {"by_group": bench.run(_by_group, ranks=SIZE)[0]}


# where in a bucket a rank's own part begins, in Inductor's code
OFFSET = re.compile(
    r"(?<=all_gather_into_tensor_out.default\(reinterpret_tensor\(buf)\w+, .*?, (\d+)(?=\), )"
)


def _kept(name: str) -> Seen:
    """What the graph with the switch holds as tensors, where its collective has its group from, and how it slices."""
    function, *inputs = program.PROGRAMS[name]()
    torch.compiler.reset()
    captured = Capture(aot=True)
    try:
        with program.switched(), torch.no_grad():
            torch.compile(function, backend=captured)(*inputs)
    except Exception as error:  # what a torch makes of a program is the finding
        return {"tensors": [], "group": f"failed: {program.first_line(error)}", "starts": []}
    graph = captured.forward[0]
    held = {node.name: getattr(graph, node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    group: Any = next((n.args[-1] for n in graph.graph.nodes if "functional.all" in str(n.target)), "")
    while getattr(group, "op", "") == "call_function":
        group = group.args[0]
    kind = "a name" if isinstance(group, str) else "an input"
    slices = [n for n in graph.graph.nodes if "aten.slice" in str(n.target)]
    return {
        "tensors": [value.tolist() for value in held.values() if isinstance(value, torch.Tensor)],
        "group": f"a constant {type(held[group.name]).__name__}"
        if getattr(group, "name", "") in held
        else kind,
        "starts": [start if isinstance(start, int) else "a symbol" for n in slices for start in n.args[2:3]],
    }


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
    return (written or [""])[0].partition("def call(")[2].partition("runner = ")[0]


def _by_group() -> dict[str, list[float]]:
    """One compiled function called with a group of this rank alone, then with all four: its sums of twos."""
    found, groups = {}, (program.own_group(), dist.group.WORLD)
    for word, on in (("off", False), ("on", True)):
        torch.compiler.reset()
        run = torch.compile(program.summed, backend="aot_eager")
        with program.switched(on), torch.no_grad():
            found[word] = [float((run(torch.ones(1), group) + 0)[0]) for group in groups]
    return found


def _text(name: str, on: bool | None = None) -> str:
    """The graphs of a program, with the switch on, off, or as torch has it."""
    try:
        if on is None:
            function, *inputs = program.PROGRAMS[name]()
            return "\n\n".join(program.captured(function, *inputs)[0])
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
    x = program.replicated(2 * SIZE + 1)  # the last rank of four has no rows
    with program.switched():
        old = torch.distributed.config.compile_on_one_rank
        _, y = program.captured(program.there_and_back, x)
    with torch.distributed.config.patch(compile_on_one_rank=True):
        both = new and getattr(torch.compiler.config, "compile_on_one_rank")  # noqa: B009
    found = {
        "new": new,
        "default": default,
        "old_name_is_on": old,
        "new_name_is_on": both,
        "torch": torch.__version__,
    }
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
    return {"ways": found, "stores": list(program.STORES), "torch": torch.__version__}


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
    """LocalTensorMode beside four real ranks: three collectives, with the switch off and on."""
    found = bench.run(_local, ranks=SIZE, backend="fake")[0]
    real = list(bench.run(_real, ranks=SIZE))
    return {**found, "real": {name: [one[name] for one in real] for name in real[0]}}


def _local() -> Seen:
    _text(NAMES[0], True)  # torch registers the operator of coordinates where it first asks for one
    ranks = torch.arange(SIZE).unsqueeze(0)
    with program.LocalTensorMode(SIZE) as mode, torch.no_grad():
        numbers = mode.rank_map(lambda rank: torch.full((1,), float(rank)))
        whole = mode.rank_map(lambda rank: torch.arange(float(SIZE)) + rank)
        parts = _collectives(numbers, whole)
        coordinate: list[float] = []
        with program.switched():
            try:
                switched = _by_rank(_collectives(numbers, whole))
                at = functional_op("_runtime_compute_coordinate_on_dim", "device_mesh")(ranks, 0)
                place = torch.arange(float(SIZE)).narrow(0, at, 1) + 0 * numbers
                coordinate = [float(part[0]) for part in place._local_tensors.values()]
            except (AttributeError, RuntimeError, TypeError) as error:
                switched = program.first_line(error)
        schema = str(functional_op("all_reduce").default._schema)
        return {
            "parts": _by_rank(parts),
            "switched": switched,
            "coordinate": coordinate,
            "takes_a_name": "str group" in schema,
        }


def _collectives(number: Any, whole: Any) -> dict[str, Any]:
    world = dist.group.WORLD
    found = {"sum": funcol.all_reduce(number, "sum", world), "all_gather": program.all_gather(number, world)}
    found["reduce_scatter"] = funcol.reduce_scatter_tensor(whole, "sum", 0, world)
    return {name: y + 0 for name, y in found.items()}


def _by_rank(found: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [part.tolist() for part in y._local_tensors.values()] for name, y in found.items()}


def _real() -> dict[str, list[float]]:
    me = float(dist.get_rank())
    found = _collectives(torch.full((1,), me), torch.arange(float(SIZE)) + me)
    return {name: y.tolist() for name, y in found.items()}


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


def _from(version: str, seen: Seen, found: Result) -> Result:
    """What was found, unless it is not so and this torch is older than the first that is to have it."""
    here, first = (tuple(map(int, text.split(".")[:2])) for text in (seen["torch"], version))
    return (
        cannot_tell(f"torch {version}", found.measured) if here < first and found.status != HOLDS else found
    )


@judging(graphs)
def coordinates_are_operators(seen: Seen) -> Result:
    """With the switch uneven shards give one graph, which asks for the coordinate, with the same tensors in it, and
    right numbers on every rank; else several."""
    found = _equal(seen, "uneven shards", "_runtime_compute_coordinate_on_dim")
    tensors = [rank["tensors"] for rank in seen["kept"]["uneven shards"]]
    said = f"tensors in it: {tensors[0]}{'' if seen['right'] else '; wrong numbers'}"
    return all_of(found, verdict(seen["right"] and all(one == tensors[0] for one in tensors), said))


@judging(graphs)
def groups_are_inputs(seen: Seen) -> Result:
    """In the graph of a DTensor program a collective has its group from an input."""
    groups = {
        name: " or ".join(sorted({rank["group"] for rank in ranks})) for name, ranks in seen["kept"].items()
    }
    said = (
        f"a collective has its group from: {', '.join(f'{group} ({name})' for name, group in groups.items())}"
    )
    off, on = (seen["by_group"][word] for word in ("off", "on"))
    said += f"; compiled with one and called with another: {on} with the switch, {off} without"
    return verdict(groups["uneven shards"] == "an input", said)


@judging(graphs)
def groups_of_meshes_are_looked_up(seen: Seen) -> Result:
    """The group of a sub mesh gives one graph with the switch, which has the mesh as an input; several without it."""
    found = _equal(seen, "a sub mesh", "mesh_get_process_group")
    group = seen["kept"]["a sub mesh"][0]["group"]
    return _from("2.12", seen, all_of(found, verdict(group == "an input", f"the mesh is {group}")))


@judging(graphs)
def ranks_in_python_stay(seen: Seen) -> Result:
    """A slice by dist.get_rank() gives each rank a graph of its own with the switch too, which starts at its number."""
    off, on = (seen["counts"]["slice by dist.get_rank()"][word] for word in ("off", "on"))
    starts = [rank["starts"] for rank in seen["kept"]["slice by dist.get_rank()"]]
    said = (
        f"different graphs of {SIZE} ranks: {off} without the switch, {on} with it; slices start at {starts}"
    )
    if isinstance(on, str):
        return cannot_tell("a torch that compiles it with the switch on", said)
    return verdict(off == on == SIZE and starts == [[rank] for rank in range(SIZE)], said)


@judging(graphs)
def off_by_default(seen: Seen) -> Result:
    """The switch is off unless it is asked for, and ranks have as many graphs as with the switch off."""
    plain, off, on = seen["as it is"], *(seen["counts"][NAMES[0]][word] for word in ("off", "on"))
    said = f"the default is {seen['default']}; graphs of {SIZE} ranks: {plain} by default, {off} off, {on} on"
    return verdict(seen["default"] is False and plain == off != on, said)


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
    """With the switch, ranks have one code for two all-gathers; where a pass makes one of the two, the place of each
    rank's part is a number in its code."""
    apart, bucketed = (seen["codes"][how][1] for how in ("none", "all"))
    said = f"different codes of {SIZE} ranks with the switch: {apart} for two all-gathers, {bucketed} in a bucket"
    if 0 in (apart, bucketed):
        return cannot_tell("a torch whose Inductor writes the code here", said)
    places = [of_rank[0] if len(of_rank) == 1 else None for of_rank in seen["offsets"]]
    own = (
        places == [rank * (places[1] or -1) for rank in range(SIZE)] and seen["codes"]["without offsets"] == 1
    )
    return verdict(
        apart == 1 < bucketed and own, f"{said}, which differ by where a rank's part begins: {places}"
    )


def _everywhere(seen: Seen, store: str, form: str) -> Result:
    """Whether all ranks run what one compiled with the switch on, and not all what it compiled without."""
    if store not in seen["stores"]:
        return cannot_tell(f"this torch has no {store}")
    found, off = (seen["ways"][f"{store}, {form}, {word}"] for word in ("on", "off"))
    said = f"by rank: {', '.join(found['outcomes'])}{found['said'] and '; '}{found['said']}"
    said += f"; without the switch: {', '.join(off['outcomes'])}"
    return verdict(set(found["outcomes"]) == {"right"} != set(off["outcomes"]), said)


@judging(carried)
def one_graph_runs_on_all(seen: Seen) -> Result:
    """What one process compiled by aot_compile with the switch on runs on all ranks; without it, not on all."""
    return _from("2.12", seen, _everywhere(seen, "aot_compile", "mesh"))


@judging(carried)
def dtensor_runs_on_all(seen: Seen) -> Result:
    """A DTensor program that one process compiled by aot_compile with the switch on runs on all ranks."""
    return _everywhere(seen, "aot_compile", "DTensor")


@judging(carried)
def caches_hit_on_all(seen: Seen) -> Result:
    """Ranks find in the disk cache what one process compiled with the switch on; without it, not all do."""
    return _everywhere(seen, "disk cache", "mesh")


@judging(carried)
def precompiled_runs_on_all(seen: Seen) -> Result:
    """What one process captured by torch.compiler.precompile with the switch on runs on all ranks; else not on all."""
    return _everywhere(seen, "precompile", "mesh")


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
def the_switch_works_in_one_process(seen: Seen) -> Result:
    """In one process functional collectives take a process group with the switch on, and give what real ranks get; the
    operator of coordinates gives each rank its own."""
    right = seen["switched"] == seen["real"]
    said = f"with the switch: {', '.join(seen['real']) + ' as over gloo' if right else seen['switched']}"
    said += f"; coordinates {seen['coordinate']}"
    if seen["takes_a_name"]:
        return cannot_tell("a torch whose operators take a group, and not its name", said)
    return verdict(right and seen["coordinate"] == [float(rank) for rank in range(SIZE)], said)


@judging(layers)
def torchcomms_is_opt_in(seen: Seen) -> Result:
    """The setting for TorchComms is off by default, and a group of gloo is torch's own."""
    right = seen["default"] is False and seen["group"] == "ProcessGroupGloo"
    return verdict(right, f"the default is {seen['default']}; a group of gloo is a {seen['group']}")

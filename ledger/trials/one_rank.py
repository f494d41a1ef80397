"""One graph for all ranks (compile_on_one_rank), what carries it to other ranks, and ranks in one process."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.config
from torch._inductor import config as inductor
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from ledger.bench import Bench
from ledger.graphs import Graphs, first_line
from ledger.trial import CannotTell, NotThere, Seen, judge, part

SIZE = 4


def switch():
    """Where this torch has the switch: in torch.compiler.config from 2.14 on."""
    new = hasattr(torch.compiler.config, "compile_on_one_rank")
    return torch.compiler.config if new else torch.distributed.config


def switched(on: bool):
    return switch().patch(compile_on_one_rank=on)


def all_gather(x, group):
    single = hasattr(funcol, "all_gather_single")  # its name from torch 2.14 on
    return (funcol.all_gather_single if single else funcol.all_gather_tensor)(x, 0, group)


def line():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def pairs():
    """A sub mesh: ranks 0 and 1, 2 and 3."""
    return init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))["tp"]


def there_and_back(x):
    """Each rank doubles its own rows of a replicated DTensor, and gathers all of them."""
    return (x.redistribute(placements=[Shard(0)]) * 2).redistribute(placements=[Replicate()])


def whole(rows: int):
    x = torch.arange(2.0 * rows).reshape(rows, 2)
    return DTensor.from_local(x, line(), [Replicate()], run_check=False)


def summed(x, group):
    return funcol.all_reduce(x * 2, "sum", group)


def by_get_rank(x, mesh):
    rows = len(x) // dist.get_world_size()
    return all_gather(x.narrow(0, dist.get_rank() * rows, rows) * 2, mesh)


def numbers(rows: int = SIZE):
    return torch.arange(2.0 * rows).reshape(rows, 2)


PROGRAMS = {
    "uneven shards": lambda: (there_and_back, whole(2 * SIZE + 1)),  # the last of four ranks has no rows
    "sub mesh": lambda: (summed, numbers(), pairs()),
    "line mesh": lambda: (summed, numbers(), line()),
    "slice by rank": lambda: (by_get_rank, numbers(), line()),
}


# --- the graphs of four ranks ---


def text(graph: torch.fx.GraphModule) -> str:
    lines = graph.print_readable(print_output=False).splitlines()
    code = [one.split(";  ")[0].strip() for one in lines if one.strip() and "#" not in one]
    return "\n".join(code[2:])


def look(name: str, on: bool | None) -> Seen:
    """On a rank: the graph of a program with the switch on, off or as it is, and what gives its group."""
    program, *inputs = PROGRAMS[name]()
    backend = Graphs(aot=True)
    with switched(switch().compile_on_one_rank if on is None else on), torch.no_grad():
        try:
            y = torch.compile(program, backend=backend)(*inputs)
        except Exception as error:  # what a torch makes of a program is the finding
            return {"failed": first_line(error)}
    every = [node for graph in backend.forward for node in graph.graph.nodes]
    held = {n.name: getattr(n.graph.owning_module, n.target) for n in every if n.op == "get_attr"}
    reduces = [n for n in every if "functional.all" in str(n.target)]
    if not reduces:
        raise ValueError(f"no collective is found in the graphs of {name}: {[str(n.target) for n in every]}")
    group = reduces[0].args[-1]
    while getattr(group, "op", "") == "call_function":
        group = group.args[0]
    kind = "an input"
    if isinstance(group, str):
        kind = "a name"
    elif group.name in held:
        kind = f"a constant {type(held[group.name]).__name__}"
    slices = [n for n in every if "aten.slice" in str(n.target)]
    y = y.to_local() if isinstance(y, DTensor) else y + 0
    return {
        "failed": "",
        "text": "\n\n".join(map(text, backend.forward)),
        "coordinate": any("_runtime_compute_coordinate_on_dim" in str(n.target) for n in every),
        "group": kind,
        "starts": [n.args[2] if isinstance(n.args[2], int) else "a symbol" for n in slices],
        "right": bool(torch.equal(y, numbers(2 * SIZE + 1) * 2)) if name == "uneven shards" else True,
    }


def looking(name: str, on: bool | None, backend: str = "fake"):
    def probe(bench: Bench) -> Seen:
        ranks = list(bench.run(look, name, on, ranks=SIZE, backend=backend))
        texts = {one.pop("text", one["failed"]) for one in ranks}
        return {
            "graphs": len(texts),
            "ranks": ranks,
            "failed": next((one["failed"] for one in ranks if one["failed"]), ""),
            "default": bool(on if on is not None else switch().compile_on_one_rank),
        }

    return probe


def described(seen: Seen) -> str:
    if seen["failed"]:
        return seen["failed"]
    groups = ", ".join(sorted({one["group"] for one in seen["ranks"]}))
    return f"{seen['graphs']} different graphs of {SIZE} ranks; the group is {groups}"


@judge(looking("uneven shards", True, "gloo"), counter=looking("uneven shards", False, "gloo"))
def uneven_shards_one_graph(seen):
    said = described(seen)
    yield part("four ranks have one graph", not seen["failed"] and seen["graphs"] == 1, said)
    asked = not seen["failed"] and all(one["coordinate"] for one in seen["ranks"])
    yield part("_runtime_compute_coordinate_on_dim", asked, said)
    yield part("the result is right on each", all(one.get("right") for one in seen["ranks"]), said)


@judge(looking("sub mesh", True), counter=looking("sub mesh", False))
def mesh_group_is_looked_up(seen):
    said, inputs = described(seen), [one.get("group") for one in seen["ranks"]]
    yield part("four ranks have one graph", not seen["failed"] and seen["graphs"] == 1, said)
    yield part("takes the group from the mesh, an input", inputs == ["an input"] * SIZE, said)


@judge(looking("uneven shards", None), counter=looking("uneven shards", True))
def off_by_default(seen):
    yield part("off by default", not seen["default"], f"the default is {seen['default']}")
    yield part("four graphs", not seen["failed"] and seen["graphs"] == SIZE, described(seen))


@judge(looking("uneven shards", True), counter=looking("line mesh", True))
def dtensor_mesh_is_a_constant(seen):
    groups = [one.get("group") for one in seen["ranks"]]
    yield part(
        "a DeviceMesh that the graph holds as a constant",
        groups == ["a constant DeviceMesh"] * SIZE,
        described(seen),
    )


@judge(looking("slice by rank", True), counter=looking("line mesh", True))
def get_rank_stays(seen):
    starts = [one.get("starts") for one in seen["ranks"]]
    said = f"{described(seen)}; slices start at {starts}"
    yield part("a graph of its own", seen["graphs"] == SIZE, said)
    yield part("starts at the number of the rank", starts == [[rank] for rank in range(SIZE)], said)


def place_of(other: str) -> Seen:
    if not hasattr(torch.compiler.config, "compile_on_one_rank"):
        raise NotThere("torch.compiler.config.compile_on_one_rank is not in this torch")
    with torch.compiler.config.patch(compile_on_one_rank=True):
        old = bool(getattr(torch.distributed.config, other))
    with torch.distributed.config.patch({other: True}):
        new = bool(torch.compiler.config.compile_on_one_rank)
    return {"old_follows": old, "new_follows": new}


@judge(
    lambda bench: bench.run(place_of, "compile_on_one_rank", ranks=1)[0],
    counter=lambda bench: bench.run(place_of, "use_torchcomms", ranks=1)[0],
)
def place(seen):
    said = f"setting the one sets the other: {seen['old_follows']}, {seen['new_follows']}"
    yield part("either sets the other", seen["old_follows"] and seen["new_follows"], said)


# --- a compiled function that is called with another group ---


def own_mesh():
    return init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("a", "b"))["b"]


def own_group():
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


def two_groups(what: str, on: bool) -> Seen:
    """Sums of twos over this rank alone and over four ranks, by one compiled function: 2 and 8."""
    backend = Graphs(aot=True)
    small, large = (own_group(), dist.group.WORLD) if what == "group" else (own_mesh(), line())
    program = (lambda x, _: summed(x, small)) if what == "closure" else summed
    run = torch.compile(program, backend=backend)
    with switched(on), torch.no_grad():
        sums = [float((run(torch.ones(1), group) + 0)[0]) for group in (small, large)]
    return {"sums": sums, "graphs": len(backend.dynamo)}


def another(what: str, on: bool = True):
    def probe(bench: Bench) -> Seen:
        ranks = list(bench.run(two_groups, what, on, ranks=SIZE))
        return {name: [one[name] for one in ranks] for name in ranks[0]}

    return probe


def sums(seen: Seen) -> str:
    return f"sums over one rank and over four: {seen['sums'][0]}, right are [2.0, 8.0]; {seen['graphs'][0]} graphs"


@judge(another("group"), counter=another("group", False))
def another_group_is_wrong(seen):
    yield part("returns the sum over the first one", seen["sums"] == [[2.0, 2.0]] * SIZE, sums(seen))
    yield part("without a recompile", seen["graphs"] == [1] * SIZE, sums(seen))


@judge(another("mesh"), counter=another("closure"))
def another_mesh_is_right(seen):
    yield part("returns the sum over the mesh of the call", seen["sums"] == [[2.0, 8.0]] * SIZE, sums(seen))


# --- what one process compiled, used by other ranks ---


def product(x, up, down, tp):
    return funcol.all_reduce(x @ up @ down, "sum", tp)


def product_alone(x, up, down, tp):
    return x @ up @ down


def product_of_dtensors(x, up, down):
    return (x @ up @ down).redistribute(placements=[Replicate()]).to_local()


def of_form(form: str):
    """A program and its inputs on this rank: x is whole, up and down are this rank's shards."""
    tp = pairs()
    torch.manual_seed(tp.get_local_rank())
    x, up, down = torch.ones(4, 8), torch.randn(8, 16), torch.randn(16, 8)
    if form != "DTensor":
        return (product if form == "mesh" else product_alone), (x, up, down, tp)
    placed = zip((x, up, down), (Replicate(), Shard(1), Shard(0)), strict=True)
    return product_of_dtensors, tuple(DTensor.from_local(p, tp, [s], run_check=False) for p, s in placed)


def compile_ahead(store: str, form: str, on: bool, folder: Path) -> str:
    """In one process: compile for all; what was said if it fails, or nothing."""
    torch.compiler.reset()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    try:
        with switched(on), torch.no_grad():
            program, inputs = of_form(form)
            if store == "aot_compile":
                with torch._dynamo.config.patch(enable_aot_compile=True):
                    compiled = torch.compile(program, fullgraph=True).aot_compile((inputs, {}))
                compiled.save_compiled_function(str(folder / "program.aot"))
            elif store == "precompile":
                paths = {"artifact_path": folder / "program.py", "cache_path": folder / "program.cache"}
                with torch.compiler.precompile.capture(program, **paths) as capture:
                    capture(*inputs)
            else:
                torch.compile(program)(*inputs)
    except Exception as error:
        return first_line(error)
    return ""


def use(store: str, form: str, on: bool, folder: Path) -> Seen:
    """On a rank: use what one process left, and compare with eager."""
    torch.compiler.reset()
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    counters = torch._dynamo.utils.counters
    counters.clear()
    own = folder / f"rank-{dist.get_rank()}"  # a copy for each rank: no rank finds what another one adds
    shutil.copytree(folder / "cache", own, dirs_exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own)
    program, inputs = of_form(form)
    try:
        with switched(on), torch.no_grad():
            if store == "aot_compile":
                with open(folder / "program.aot", "rb") as file:
                    run = torch.compiler.load_compiled_function(file)
            elif store == "precompile":
                run = torch.compiler.precompile.load(folder / "program.py", folder / "program.cache")
            else:
                run = torch.compile(program)
            y = run(*inputs) + 0
    except Exception as error:  # whatever a store raises is the finding
        return {"error": first_line(error), "right": False, "hits": 0, "misses": 0}
    found = counters["inductor"]
    return {
        "error": "",
        "right": bool(torch.allclose(y, program(*inputs) + 0, atol=1e-5)),
        "hits": found["fxgraph_cache_hit"],
        "misses": found["fxgraph_cache_miss"],
    }


WAYS = tuple(
    (store, form, on)
    for store, form in (("aot_compile", "mesh"), ("aot_compile", "DTensor"), ("aot_compile", "no collective"),
                        ("disk cache", "mesh"), ("disk cache", "no collective"), ("precompile", "mesh"))
    for on in (False, True)
)  # fmt: skip
HAS_PRECOMPILE = hasattr(getattr(torch.compiler, "precompile", None), "capture")


@functools.lru_cache(maxsize=1)
def all_carried(bench: Bench) -> dict[tuple, Seen]:
    """What became on four ranks of what one process compiled. New processes: the names of groups are counted up."""
    found = {}
    with (
        Ranks(SIZE, device="cpu", backend="fake", quiet=True) as one,
        Ranks(SIZE, device="cpu", backend="gloo", quiet=True, stall=20) as four,
    ):
        for way in WAYS:
            if way[0] == "precompile" and not HAS_PRECOMPILE:
                continue
            with tempfile.TemporaryDirectory() as folder:
                failed = one.run(quietly, compile_ahead, *way, Path(folder), ranks=0)[0]
                ranks = [] if failed else list(four.run(quietly, use, *way, Path(folder)).values())
            found[way] = {"not_made": failed, "ranks": ranks}
    return found


def carried(store: str, form: str, on: bool):
    def probe(bench: Bench) -> Seen:
        if store == "precompile" and not HAS_PRECOMPILE:
            raise NotThere("torch.compiler.precompile.capture is not in this torch")
        seen = all_carried(bench)[store, form, on]
        if seen["not_made"]:
            raise ValueError(f"{store}, {form}: not compiled: {seen['not_made']}")
        return seen

    return probe


def outcomes(seen: Seen) -> str:
    return "by rank: " + ", ".join(
        one["error"] or f"{'right' if one['right'] else 'wrong'} ({one['hits']} hits, {one['misses']} misses)"
        for one in seen["ranks"]
    )


@judge(carried("aot_compile", "mesh", True), counter=carried("aot_compile", "mesh", False))
def aot_runs_on_all(seen):
    yield part(
        "runs on all four ranks with the right result",
        all(one["right"] for one in seen["ranks"]),
        outcomes(seen),
    )


@judge(carried("aot_compile", "DTensor", True), counter=carried("aot_compile", "no collective", True))
def aot_dtensor_fails(seen):
    fails = all(one["error"] for one in seen["ranks"])
    yield part("raises an error on every rank", fails, outcomes(seen))


@judge(carried("precompile", "mesh", True), counter=carried("precompile", "mesh", False))
def precompile_runs_on_all(seen):
    yield part(
        "runs on all four ranks with the right result",
        all(one["right"] for one in seen["ranks"]),
        outcomes(seen),
    )


@judge(carried("disk cache", "mesh", True), counter=carried("disk cache", "no collective", True))
def disk_cache_misses(seen):
    first, *others = seen["ranks"]
    if first["misses"] or not first["hits"]:
        raise ValueError(f"rank 0 does not find its own: {outcomes(seen)}")
    yield part("every other rank misses", all(one["misses"] for one in others), outcomes(seen))


# --- passes and code of Inductor ---


def compiled(program, inputs, **settings):
    """The result and the code of Inductor with the switch on, without its caches."""
    torch._dynamo.reset()
    settings = {"fx_graph_cache": False, "cpp.vec_isa_ok": True, **settings}
    no_cache = torch._functorch.config.patch(enable_autograd_cache=False)
    with switched(True), inductor.patch(settings), no_cache, torch.no_grad():
        return run_and_get_code(torch.compile(program), *inputs)


def two_gathers(x, y, mesh):
    return all_gather(x, mesh), all_gather(y, mesh)


def gathers_code(how: str) -> Seen:
    inputs = (torch.ones(4, 2), torch.ones(4, 3), line())
    try:
        _, code = compiled(two_gathers, inputs, bucket_all_gathers_fx=how)
    except Exception as error:
        return {"failed": first_line(error), "code": ""}
    return {"failed": "", "code": code[0].partition("def call(")[2].partition("runner = ")[0]}


NUMBER = re.compile(r"\d+")


def gathers(how: str):
    def probe(bench: Bench) -> Seen:
        ranks = list(bench.run(gathers_code, how, ranks=SIZE, backend="fake"))
        failed = next((one["failed"] for one in ranks if one["failed"]), "")
        codes = [one["code"] for one in ranks]
        if not failed and not all("all_gather_into_tensor" in code for code in codes):
            raise ValueError("no all-gather is found in the code")
        columns = zip(*[map(int, NUMBER.findall(code)) for code in codes], strict=False)
        return {
            "failed": failed,
            "codes": len(set(codes)),
            "without_numbers": len({NUMBER.sub("N", code) for code in codes}),
            "numbers": sorted({of_ranks for of_ranks in columns if len(set(of_ranks)) > 1}),
        }

    return probe


@judge(gathers("all"), counter=gathers("none"))
def buckets_hold_the_rank(seen):
    said = (
        seen["failed"]
        or f"{seen['codes']} codes of {SIZE} ranks, which differ in the numbers {seen['numbers']}"
    )
    yield part("four ranks have four codes", not seen["failed"] and seen["codes"] == SIZE, said)
    places = [[rank * step[1] for rank in range(SIZE)] == step for step in seen["numbers"]]
    only = seen["without_numbers"] == 1 and places == [True]
    yield part("the place of the rank's own part in the bucket is a number", only, said)


def own_rows_positive(x):
    mine = x.redistribute(placements=[Shard(0)])
    return mine if mine.to_local().sum() > 0 else x


def inductor_rank(branch: bool, rows: int) -> Seen:
    x = whole(rows)
    try:
        if branch:  # the counterexample: one graph cannot hold it
            with switched(True), torch.no_grad():
                torch._dynamo.reset()
                y = torch.compile(own_rows_positive, fullgraph=True)(x)
        else:
            y, _ = compiled(there_and_back, (x,))
    except Exception as error:
        return {"failed": first_line(error), "right": False}
    return {"failed": "", "right": bool(torch.equal(y.to_local(), x.to_local() * 2))}


def rows_over_ranks(branch: bool):
    """Over a group that does not communicate first: a rank that fails would leave the others waiting."""

    def probe(bench: Bench) -> Seen:
        failed = [one["failed"] for one in bench.run(inductor_rank, branch, 5, ranks=SIZE, backend="fake")]
        right = [False] * SIZE
        if not any(failed):
            right = [one["right"] for one in bench.run(inductor_rank, branch, 5, ranks=SIZE)]
        return {"failed": failed, "right": right}

    return probe


@judge(rows_over_ranks(False), counter=rows_over_ranks(True))
def empty_shard(seen):
    said = "by rank: " + ", ".join(one or "compiled" for one in seen["failed"])
    yield part("compiles on every rank", not any(seen["failed"]), said)
    yield part("with the right result", all(seen["right"]), f"right by rank: {seen['right']}")


def collectives_rank(together: bool) -> Seen:
    torch._dynamo.reset()
    backend, x = Graphs(), torch.ones(4 + 2 * dist.get_rank(), 3)
    with torch._dynamo.config.patch(enable_compiler_collectives=together):
        try:
            torch.compile(lambda x: x.square().sum(), backend=backend)(x)
        except Exception as error:
            return {"failed": first_line(error), "sizes": []}
    inputs = [n.meta["example_value"] for n in backend.dynamo[0].graph.nodes if n.op == "placeholder"]
    return {"failed": "", "sizes": [str(tuple(v.shape)) for v in inputs if isinstance(v, torch.Tensor)]}


def agreeing(together: bool):
    def probe(bench: Bench) -> Seen:
        if torch.accelerator.is_available():
            raise CannotTell("a machine without an accelerator")
        return {"ranks": list(bench.run(collectives_rank, together))}

    return probe


@judge(agreeing(True), counter=agreeing(False))
def compiler_collectives_need_a_device(seen):
    failed = [one["failed"] for one in seen["ranks"]]
    said = "; ".join(one["failed"] or str(one["sizes"]) for one in seen["ranks"])
    yield part("raises a TypeError on both ranks", all("TypeError" in one for one in failed), said)


def stand_ins_rank(together: bool) -> Seen:
    """With stand-ins for the accelerator that this code of torch asks for: its group, its count, its current device."""
    import torch._dynamo.device_interface
    import torch._dynamo.distributed

    torch._dynamo.distributed._COMPILE_PG = dist.new_group(backend="cpu:gloo")
    torch.accelerator.device_count = lambda: 1
    torch._dynamo.device_interface.CpuInterface.device = lambda index=None: contextlib.nullcontext()
    return collectives_rank(together)


def with_stand_ins(together: bool):
    def probe(bench: Bench) -> Seen:
        with Ranks(
            2, device="cpu", backend="gloo", quiet=True, stall=20
        ) as two:  # they stay in these processes
            return {"ranks": list(two.run(quietly, stand_ins_rank, together).values())}

    return probe


@judge(with_stand_ins(True), counter=with_stand_ins(False))
def sizes_are_agreed(seen):
    sizes = [one["sizes"] for one in seen["ranks"]]
    said = "; ".join(one["failed"] or str(one["sizes"]) for one in seen["ranks"])
    same = len(sizes[0]) == 1 and sizes[0] == sizes[1]
    yield part("compile the same graph", same, said)
    yield part("with a symbol for the number of rows", same and sizes[0][0].startswith("(s"), said)


# --- ranks in one process ---


def collectives(number, rows) -> Seen:
    world = dist.group.WORLD
    return {
        "sum": funcol.all_reduce(number, "sum", world) + 0,
        "all_gather": all_gather(number, world) + 0,
        "reduce_scatter": funcol.reduce_scatter_tensor(rows, "sum", 0, world) + 0,
    }


def real_rank() -> Seen:
    me = float(dist.get_rank())
    return {name: y.tolist() for name, y in collectives(torch.full((1,), me), torch.arange(4.0) + me).items()}


def by_rank(y) -> list:
    return [part.tolist() for part in y._local_tensors.values()]


def local_rank(on: bool, mode_on: bool = True) -> Seen:
    """Three collectives of four ranks in one process; without the mode, of the one rank that there is."""
    from torch.distributed._local_tensor import LocalTensorMode

    if not mode_on:
        me = torch.full((1,), 0.0)
        with torch.no_grad():
            found = collectives(me, torch.arange(4.0))
        return {"failed": "", "found": {name: [y.tolist()] * SIZE for name, y in found.items()}}
    with LocalTensorMode(SIZE) as mode, torch.no_grad(), switched(on):
        number = mode.rank_map(lambda rank: torch.full((1,), float(rank)))
        rows = mode.rank_map(lambda rank: torch.arange(4.0) + rank)
        try:
            found = {name: by_rank(y) for name, y in collectives(number, rows).items()}
        except Exception as error:
            return {"failed": first_line(error), "found": {}}
    return {"failed": "", "found": found}


def one_process(on: bool, mode_on: bool = True):
    def probe(bench: Bench) -> Seen:
        seen = bench.run(local_rank, on, mode_on, ranks=SIZE, backend="fake")[0]
        real = list(bench.run(real_rank, ranks=SIZE))
        return {**seen, "real": {name: [one[name] for one in real] for name in real[0]}}

    return probe


def compared(seen: Seen) -> tuple[bool, str]:
    same = [name for name in seen["real"] if seen["found"].get(name) == seen["real"][name]]
    return len(same) == 3, seen["failed"] or f"as over gloo: {', '.join(same) or 'none'}"


@judge(one_process(False), counter=one_process(False, False))
def local_tensor_collectives(seen):
    yield part("give each rank what four gloo ranks get", *compared(seen))


@judge(one_process(True), counter=one_process(True, False))
def local_tensor_with_the_switch(seen):
    yield part("give each rank what four gloo ranks get", *compared(seen))


def local_slice(how: str) -> Seen:
    from torch.distributed._local_tensor import LocalTensorMode

    mesh = line()
    with LocalTensorMode(SIZE) as mode, torch.no_grad():
        x = mode.rank_map(lambda rank: torch.ones(1))
        try:
            place = mesh.get_local_rank() if how == "mesh" else dist.get_rank()
            y = torch.arange(4.0).narrow(0, int(place) if how == "int" else place, 1) + 0 * x
            return {"failed": "", "found": by_rank(y)}
        except Exception as error:
            return {"failed": first_line(error), "found": []}


def slices(how: str):
    return lambda bench: bench.run(local_slice, how, ranks=SIZE, backend="fake")[0]


@judge(slices("rank"), counter=slices("int"))
def local_tensor_get_rank(seen):
    said = seen["failed"] or f"a slice at dist.get_rank(): {seen['found']}"
    yield part("gives each rank its own number", seen["found"] == [[0.0], [1.0], [2.0], [3.0]], said)


def local_coordinate(shape: list[int]) -> Seen:
    from torch.distributed._local_tensor import LocalTensorMode

    look("uneven shards", True)  # torch registers the operator where it first asks for a coordinate
    name = "_runtime_compute_coordinate_on_dim"
    library = next(one for one in (torch.ops.device_mesh, torch.ops._dtensor) if hasattr(one, name))
    with LocalTensorMode(SIZE) as mode, torch.no_grad(), switched(True):
        zero = mode.rank_map(lambda rank: torch.zeros(1))
        at = getattr(library, name)(torch.arange(SIZE).reshape(1, *shape), 0)
        try:
            y = torch.arange(4.0).narrow(0, at, 1) + zero
            return {"failed": "", "found": by_rank(y)}
        except Exception as error:
            return {"failed": first_line(error), "found": []}


def coordinates(*shape: int):
    return lambda bench: bench.run(local_coordinate, list(shape), ranks=SIZE, backend="fake")[0]


@judge(coordinates(4), counter=coordinates(2, 2))
def local_tensor_coordinates(seen):
    said = seen["failed"] or f"coordinates by rank: {seen['found']}"
    yield part(
        "gives each of four ranks its own coordinate", seen["found"] == [[0.0], [1.0], [2.0], [3.0]], said
    )


def comms_rank() -> Seen:
    config = torch.distributed.config
    kind = type(dist.new_group()._get_backend(torch.device("cpu"))).__name__
    return {"default": bool(config.use_torchcomms), "group": kind}


@judge(
    lambda bench: bench.run(comms_rank)[0],
    counter=lambda bench: bench.run(comms_rank, ranks=SIZE, backend="fake")[0],
)
def torchcomms_is_off(seen):
    yield part("is off by default", not seen["default"], f"the default is {seen['default']}")
    yield part(
        "is a ProcessGroupGloo", seen["group"] == "ProcessGroupGloo", f"the group is a {seen['group']}"
    )

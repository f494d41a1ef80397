"""Who compiles, who waits for it, and what a later process finds: caches, packages, ranks (CPU)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from pathlib import Path
from unittest import mock

import torch
import torch._dynamo
import torch._functorch.config
import torch._functorch.partitioners as partitioners
import torch._inductor.compile_fx
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import remote_cache
from torch._inductor.graph import GraphLowering

from labkit import timing
from labkit.ranks import RankError, Ranks
from ledger.bench import Bench, quietly
from ledger.graphs import Graphs, calls
from ledger.trial import CannotTell, NotThere, Seen, judge, part

WIDTH = 32


def by_rank(ranks) -> Seen:
    """Records of ranks as one record of lists."""
    rows = list(ranks)
    return {name: [row[name] for row in rows] for name in rows[0]}


def weights():
    torch.manual_seed(0)
    return torch.randn(WIDTH, WIDTH) / WIDTH**0.5, torch.randn(WIDTH, WIDTH) / WIDTH**0.5


def products(x, a, b):
    """Inductor leaves products to BLAS: there is no kernel that a C++ compiler would have to build."""
    return x @ a @ b


@contextlib.contextmanager
def inductor(folder, **settings):
    """With a cache folder; yields a list that gets the process id for each graph that Inductor lowers."""
    lowered, run = [], GraphLowering.run

    def counted(self, *arguments):
        lowered.append(os.getpid())
        return run(self, *arguments)

    torch._dynamo.reset()
    with (
        mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(folder)),
        mock.patch.object(GraphLowering, "run", counted),
        torch._inductor.config.patch({"cpp.vec_isa_ok": True, **settings}),
    ):
        yield lowered
    torch._dynamo.reset()


def looked_up() -> Seen:
    both = [*counters["inductor"].items(), *counters["aot_autograd"].items()]
    return {end: sum(n for name, n in both if name.endswith(f"cache_{end}")) for end in ("hit", "miss")}


# --- the first call ---

COMPILE_S = 0.3


def first_calls(stance) -> Seen:
    torch._dynamo.reset()
    ends = []

    def backend(graph, inputs):
        time.sleep(COMPILE_S)
        ends.append(time.perf_counter())
        return graph.forward

    took, done = [], []
    with torch.compiler.set_stance(stance), torch.no_grad():
        compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
        for _ in range(4):
            began = time.perf_counter()
            compiled(torch.ones(4))
            done.append(time.perf_counter())
            took.append(done[-1] - began)
    torch._dynamo.reset()
    return {
        "compiled_before": [bool(ends) and ends[0] < end for end in done],
        "compiles": len(ends),
        "took": took,
    }


def just_in_time(bench: Bench) -> Seen:
    return first_calls("default")


def eager_first(bench: Bench) -> Seen:
    """The stance in which the first call runs in Python and the second one compiles."""
    return first_calls("eager_then_compile")


@judge(just_in_time, counter=eager_first)
def first_call_blocks(seen):
    took = seen["took"]
    said = f"compiler busy for {COMPILE_S} s; calls took {', '.join(f'{s:.4f}' for s in took)} s"
    yield part("The first call", seen["compiled_before"][0] and took[0] >= COMPILE_S, said)
    yield part(
        "later calls that fit do not compile", seen["compiles"] == 1 and max(took[1:]) < COMPILE_S, said
    )


# --- a warmup ---


def served(rows, doubled) -> int:
    """Graphs that a request of two rows with the flag compiles, after a warmup with these rows and flag."""
    backend = Graphs()

    def program(x, doubled):
        y = funcol.all_reduce(x, "sum", dist.group.WORLD)
        return y * 2 if doubled else y

    compiled = torch.compile(program, backend=backend, dynamic=False)
    with torch.no_grad():
        compiled(torch.ones(rows, 4), doubled) + 0
        warm = len(backend.dynamo)
        compiled(torch.ones(2, 4), True) + 0
    torch._dynamo.reset()
    return len(backend.dynamo) - warm


def warmups(bench: Bench) -> Seen:
    ways = {"as_served": (2, True), "other_rows": (3, True), "other_flag": (2, False)}
    return {name: list(bench.run(served, *way)) for name, way in ways.items()}


def served_whatever(rows, doubled) -> int:
    """The same with the size as a symbol and the flag as a tensor."""
    backend = Graphs()

    def program(x, doubled):
        y = funcol.all_reduce(x, "sum", dist.group.WORLD)
        return torch.where(doubled, y * 2, y)

    compiled = torch.compile(program, backend=backend, dynamic=True)
    with torch.no_grad():
        compiled(torch.ones(rows, 4), torch.tensor(doubled)) + 0
        warm = len(backend.dynamo)
        compiled(torch.ones(2, 4), torch.tensor(True)) + 0
    torch._dynamo.reset()
    return len(backend.dynamo) - warm


def warmups_that_fit_all(bench: Bench) -> Seen:
    ways = {"as_served": (2, True), "other_rows": (3, True), "other_flag": (2, False)}
    return {name: list(bench.run(served_whatever, *way)) for name, way in ways.items()}


@judge(warmups, counter=warmups_that_fit_all)
def warmup_fits(seen):
    said = "graphs that the request compiles, by rank: " + ", ".join(f"{k} {v}" for k, v in seen.items())
    yield part("compiles nothing", seen["as_served"] == [0, 0], said)
    yield part("other rows", seen["other_rows"] == [1, 1], said)
    yield part("another flag", seen["other_flag"] == [1, 1], said)


# --- ranks compile each for itself ---


def compiled_here(place, folder) -> Seen:
    """The first call with the cache folder `folder`, or with the folder 'shared' on rank 0 first."""
    rank, (a, b) = dist.get_rank(), weights()
    x = torch.ones(4, WIDTH)
    span = []

    def first_call(into):
        with inductor(Path(place) / into) as lowered, torch.no_grad():

            def backend(graph, inputs):
                span.append(time.perf_counter())  # one clock for all processes of a machine
                time.sleep(0.3)
                made = torch._inductor.compile_fx.compile_fx(graph, inputs)
                span.append(time.perf_counter())
                return made

            before = looked_up()
            right = torch.allclose(
                torch.compile(products, backend=backend)(x, a, b), products(x, a, b), atol=1e-5
            )
            return {"lowered": list(lowered), "right": right} | {
                k: n - before[k] for k, n in looked_up().items()
            }

    if folder == "shared":
        if rank == 0:
            found = first_call("shared")
        dist.barrier()
        if rank != 0:
            found = first_call("shared")
    else:
        dist.barrier()
        found = first_call(f"{folder}-{rank}")
    return found | {"pid": os.getpid(), "span": span}


def own_folders(bench: Bench) -> Seen:
    with tempfile.TemporaryDirectory() as place:
        bench.run(compiled_here, place, "warm")  # what a process pays once
        return by_rank(bench.run(compiled_here, place, "own"))


def one_folder_in_turn(bench: Bench) -> Seen:
    """Rank 1 comes after rank 0 and finds what it left."""
    with tempfile.TemporaryDirectory() as place:
        return by_rank(bench.run(compiled_here, place, "shared"))


@judge(own_folders, counter=one_folder_in_turn)
def each_rank_compiles(seen):
    said = f"graphs lowered by Inductor, by rank: {[len(one) for one in seen['lowered']]}"
    own = [len(one) > 0 and set(one) == {pid} for one, pid in zip(seen["lowered"], seen["pid"], strict=True)]
    yield part("Each rank compiles the same program itself", all(own) and all(seen["right"]), said)
    yield part("in its own process", all(own) and len(set(seen["pid"])) == len(seen["pid"]), said)
    shared = min(span[1] for span in seen["span"]) - max(span[0] for span in seen["span"])
    yield part("at the same time", shared > 0, f"{max(shared, 0):.2f} s of it at the same time")


@judge(one_folder_in_turn, counter=own_folders)
def local_cache(seen):
    lowered = [len(one) for one in seen["lowered"]]
    said = f"by rank: found {seen['hit']}, missed {seen['miss']}, lowered {lowered}"
    yield part("finds the compiled graph", seen["hit"][1] > 0 == seen["miss"][1] and seen["right"][1], said)
    yield part("does not compile it again", len(seen["lowered"][0]) > 0 == len(seen["lowered"][1]), said)


def uneven_compile(collective) -> Seen:
    """A first call whose backend takes 0.8 s on rank 1 and 0.2 s on rank 0."""
    torch._dynamo.reset()
    rank, busy = dist.get_rank(), []

    def backend(graph, inputs):
        began = time.perf_counter()
        time.sleep(0.8 if rank else 0.2)
        busy.append(time.perf_counter() - began)
        return graph.forward

    def program(x):
        return funcol.all_reduce(x, "sum", dist.group.WORLD) if collective else x * 2

    with torch.no_grad():
        torch.compile(torch.sin, backend="eager")(torch.ones(4))  # Dynamo's own start is not what is timed
        compiled = torch.compile(program, backend=backend)
        dist.barrier()
        began = time.perf_counter()
        compiled(torch.ones(4)) + 0
        took = time.perf_counter() - began
    torch._dynamo.reset()
    return {"busy": sum(busy), "took": took}


def slow_peer(bench: Bench) -> Seen:
    return by_rank(bench.run(uneven_compile, True))


def slow_peer_alone(bench: Bench) -> Seen:
    return by_rank(bench.run(uneven_compile, False))


@judge(slow_peer, counter=slow_peer_alone)
def peers_wait(seen):
    busy, took = seen["busy"], seen["took"]
    said = f"in the backend {busy[0]:.2f} and {busy[1]:.2f} s, first call {took[0]:.2f} s on rank 0"
    yield part("waits in the first collective", took[0] >= 0.75 > 0.6 > busy[0], said)


def by_branch(differ) -> Seen:
    backend, rank = Graphs(), dist.get_rank() if differ else 0
    compiled = torch.compile(lambda x: x.sin() if rank == 0 else x.cos(), backend=backend)
    with torch.no_grad():
        right = torch.equal(compiled(torch.ones(4)), torch.ones(4).cos() if rank else torch.ones(4).sin())
    torch._dynamo.reset()
    return {"calls": [calls(graph) for graph in backend.dynamo], "right": right}


def branch_by_rank(bench: Bench) -> Seen:
    return by_rank(bench.run(by_branch, True))


def branch_alike(bench: Bench) -> Seen:
    return by_rank(bench.run(by_branch, False))


@judge(branch_by_rank, counter=branch_alike)
def ranks_compile_what_they_see(seen):
    said = f"operators in the graphs, by rank: {seen['calls']}"
    yield part("a graph of its own branch only", seen["calls"] == [[["sin"]], [["cos"]]], said)
    yield part("without an error", all(seen["right"]), said)


def health(odd) -> Seen:
    """Counts of graphs and breaks, gathered, where rank 1 or no rank breaks between two collectives."""
    torch._dynamo.reset()
    counters.clear()

    def program(x):
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        if odd and dist.get_rank() == 1:
            torch._dynamo.graph_break()
        return funcol.all_reduce(y, "sum", dist.group.WORLD) + 1

    with torch.no_grad():
        y = torch.compile(program, backend="eager")(torch.ones(4))
    mine = [counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    torch._dynamo.reset()
    return {"everyone": everyone, "right": torch.equal(y, torch.full((4,), 9.0))}


def break_on_one(bench: Bench) -> Seen:
    return by_rank(bench.run(health, True))


def break_on_none(bench: Bench) -> Seen:
    return by_rank(bench.run(health, False))


@judge(break_on_one, counter=break_on_none)
def break_on_one_rank(seen):
    one = seen["everyone"][0]
    said = f"[graphs, breaks] by rank, gathered: {one}; results {'right' if all(seen['right']) else 'wrong'}"
    yield part("more graphs and one break more", one[1][0] > one[0][0] and one[1][1] == one[0][1] + 1, said)
    yield part("all_gather_object", seen["everyone"][0] == seen["everyone"][1], said)
    yield part("right results", all(seen["right"]), said)


# --- a hit on one rank only ---

HANG_S = 3.0


def step(x, weight):
    return funcol.all_reduce(x @ weight, "sum", dist.group.WORLD) @ weight.t()


def train(place, folder, together) -> None:
    """A first step that notes what it compiled, and ends its process where it would wait forever."""
    rank = dist.get_rank()
    notes = [Path(place) / f"{folder}-{r}.json" for r in (0, 1)]
    main, waiting = threading.main_thread().ident, 0.0
    over = threading.Event()

    def note(**more):
        found = {k: n - before[k] for k, n in looked_up().items()} | {"partitioned": len(entered)} | more
        fresh = notes[rank].with_suffix(".new")
        fresh.write_text(json.dumps(found))
        fresh.replace(notes[rank])

    def read(r):
        return json.loads(notes[r].read_text()) if notes[r].exists() else {}

    def watch():
        nonlocal waiting
        while not over.wait(0.2):
            frame, names = sys._current_frames()[main], set()
            while frame:
                names.add(frame.f_code.co_name)
                frame = frame.f_back
            inside = "_sync_decision_cross_ranks" in names
            waiting = waiting + 0.2 if inside and read(0).get("hit") else 0.0
            end = waiting >= HANG_S or read(1 - rank).get("end") == "waits in its compile"
            if end and not over.is_set():
                note(end="waits in its compile" if inside else "is past its compile")
                while not read(1 - rank).get("end"):  # labkit ends both ranks as soon as one has gone
                    time.sleep(0.05)
                os._exit(3)
            note(end="")

    def partitions(*arguments):
        entered.append(1)
        return decide(*arguments)

    entered, decide = [], partitioners._sync_decision_cross_ranks
    config = {"_sync_decision_cross_ranks": True}
    if together:
        config["_sync_cache_decision_cross_ranks"] = True
    x = torch.ones(4, 8)
    weight = torch.eye(8).requires_grad_()
    with (
        inductor(Path(place) / f"cache-{rank}"),
        mock.patch.object(partitioners, "_sync_decision_cross_ranks", partitions),
        torch._functorch.config.patch(config),
    ):
        dist.barrier()
        before = looked_up()
        threading.Thread(target=watch, daemon=True).start()
        torch.compile(step)(x, weight).backward(torch.ones(4, 8))
        over.set()
        time.sleep(0.3)
        right = weight.grad is not None and bool(weight.grad.abs().sum() > 0)
        note(end="done" if right else "has no gradient")


@functools.cache
def cold_and_lost(together) -> Seen:
    """Two starts of a step: with empty caches, and after rank 1 has lost its own."""
    for _ in range(3):  # on a busy machine both ranks may stay in a collective of the compiler, cold too
        found = {}
        with tempfile.TemporaryDirectory() as place:
            with Ranks(2, "cpu", "gloo", quiet=True, timeout=30, stall=None) as ranks:
                for start in ("cold", "lost"):
                    with contextlib.suppress(RankError):  # a rank ended itself
                        ranks.run(quietly, train, place, start, together)
                    notes = [json.loads((Path(place) / f"{start}-{r}.json").read_text()) for r in (0, 1)]
                    found[start] = {name: [note[name] for note in notes] for name in notes[0]}
                    if not all(found[start]["end"]):
                        break
                    shutil.rmtree(Path(place) / "cache-1")
                else:
                    return found
    raise RuntimeError(f"the ranks neither end nor wait for each other: {found}")


def one_rank_hits(bench: Bench) -> Seen:
    return cold_and_lost(False)["lost"]


def no_rank_hits(bench: Bench) -> Seen:
    return cold_and_lost(False)["cold"]


def one_rank_hits_together(bench: Bench) -> Seen:
    if not hasattr(torch._functorch.config, "_sync_cache_decision_cross_ranks"):
        raise NotThere("torch._functorch.config._sync_cache_decision_cross_ranks is missing")
    return cold_and_lost(True)["lost"]


@judge(one_rank_hits, counter=no_rank_hits)
def one_hit_hangs(seen):
    said = f"by rank: cache hits {seen['hit']}, misses {seen['miss']}, end: {seen['end']}"
    hit = seen["hit"][0] > 0 and seen["hit"][1] == 0
    yield part("a cache hit on one rank only", hit, said)
    yield part(
        "the rank that misses waits inside its compile", seen["end"][1] == "waits in its compile", said
    )
    yield part("the rank that hits is past it", seen["end"][0] == "is past its compile", said)


@judge(one_rank_hits_together, counter=one_rank_hits)
def hits_are_unanimous(seen):
    said = f"by rank: cache hits {seen['hit']}, graphs partitioned {seen['partitioned']}, end: {seen['end']}"
    yield part("drops its hit", seen["hit"][0] > 0 and seen["partitioned"][0] > 0, said)
    yield part("both compile", min(seen["partitioned"]) > 0, said)
    yield part("both end the step", seen["end"] == ["done", "done"], said)


# --- what one process makes and another one uses ---


class OverStore(remote_cache.RemoteCacheBackend):
    """The place of a Redis server: the store of the process group, on rank 0."""

    store = None

    def _get(self, key):
        return OverStore.store.get(key) if OverStore.store.check([key]) else None

    def _put(self, key, data):
        OverStore.store.set(key, data)


def through_remote(place, on) -> Seen:
    """Rank 0 compiles, then rank 1 does, with folders of their own."""
    rank, (a, b) = dist.get_rank(), weights()
    x = torch.ones(4, WIDTH)
    OverStore.store = dist.distributed_c10d._get_default_store()
    switches = {"fx_graph_remote_cache": on}
    for turn in (0, 1):
        if rank == turn:
            with (
                inductor(Path(place) / f"rank-{rank}", **switches) as lowered,
                torch._functorch.config.patch(enable_remote_autograd_cache=on),
                mock.patch.object(remote_cache.RemoteCache, "backend_override_cls", OverStore),
                torch.no_grad(),
            ):
                right = torch.allclose(torch.compile(products)(x, a, b), products(x, a, b), atol=1e-5)
                found = {"lowered": len(lowered), "right": right}
        dist.barrier()
    return found


def remote_on(bench: Bench) -> Seen:
    with tempfile.TemporaryDirectory() as place:
        return by_rank(bench.run(through_remote, place, True))


def remote_off(bench: Bench) -> Seen:
    with tempfile.TemporaryDirectory() as place:
        return by_rank(bench.run(through_remote, place, False))


@judge(remote_on, counter=remote_off)
def remote_cache_is_shared(seen):
    said = f"graphs lowered by rank 0, then by rank 1: {seen['lowered']}"
    yield part("the process that compiles first", seen["lowered"][0] > 0 and seen["right"][0], said)
    yield part("does not compile it again", seen["lowered"][1] == 0 and seen["right"][1], said)


class Rectified(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(weights()[0], requires_grad=False)

    def forward(self, x):
        return x @ self.weight


def elsewhere(place, way) -> Seen:
    """What rank 0 makes of a module in one way, used on rank 1: is it right, and what is compiled there."""
    rank, model, x = dist.get_rank(), Rectified(), torch.ones(4, WIDTH)
    file = Path(place) / way
    found = {"right": True, "graphs": 0, "lowered": 0}
    with inductor(Path(place) / f"cache-{rank}") as lowered, torch.no_grad():
        if rank == 0:
            save(way, model, x, file)
        dist.barrier()
        if rank == 1:
            counters.clear()
            call = load(way, model, file)
            right = torch.allclose(call(x), model(x), atol=1e-5)
            graphs = counters["stats"]["unique_graphs"]
            found = {"right": right, "graphs": graphs, "lowered": len(lowered)}
    return found


def save(way, model, x, file) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "package.pt2":
            exported = torch.export.export(model, (x,))
            quick = {"aot_inductor.compile_wrapper_opt_level": "O0"}
            torch._inductor.aoti_compile_and_package(exported, package_path=str(file), inductor_configs=quick)
        elif way == "aot_compile":
            with torch._dynamo.config.patch(enable_aot_compile=True):  # off by default in torch 2.11
                forward = torch.compile(model, fullgraph=True).forward
                forward.aot_compile(((x,), {})).save_compiled_function(str(file))
        elif way == "precompile":
            paths = {"artifact_path": file.with_suffix(".py"), "cache_path": file.with_suffix(".cache")}
            with torch.compiler.precompile.capture(product, **paths) as capture:
                capture(x, model.weight)


def product(x, weight):
    return x @ weight


def load(way, model, file):
    if way == "package.pt2":
        return torch._inductor.aoti_load_package(str(file))
    if way == "aot_compile":
        with file.open("rb") as saved:
            return functools.partial(torch.compiler.load_compiled_function(saved), model)
    if way == "precompile":
        loaded = torch.compiler.precompile.load(file.with_suffix(".py"), file.with_suffix(".cache"))
        return lambda x: loaded(x, model.weight)
    return torch.compile(model)


def library_calls(library) -> tuple[list[str], list[str]]:
    """What a library calls of AOTInductor's C interface, and of torch's C++."""
    if shutil.which("nm") is None:
        raise CannotTell("the program nm")
    asked = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, timeout=60
    )
    names = [line.split()[-1] for line in asked.stdout.splitlines() if line.split()]
    cpp = [name for name in names if re.match(r"_ZN?K?\d*(2at|3c10|5torch)", name)]
    return sorted(name for name in names if name.startswith("aoti_torch")), cpp


@functools.cache
def packaged(bench) -> Seen:
    with tempfile.TemporaryDirectory() as place:
        found = by_rank(bench.run(elsewhere, place, "package.pt2"))
        with zipfile.ZipFile(Path(place) / "package.pt2") as archive:
            library = archive.extract(next(n for n in archive.namelist() if n.endswith(".so")), place)
        c, cpp = library_calls(library)
    return found | {"c": len(c), "cpp": len(cpp), "control": len(library_calls(torch_library())[1])}


def torch_library() -> Path:
    return Path(torch.__file__).parent / "lib" / "libtorch_python.so"


def package(bench: Bench) -> Seen:
    return packaged(bench)


def compiled_anew(bench: Bench) -> Seen:
    with tempfile.TemporaryDirectory() as place:
        return by_rank(bench.run(elsewhere, place, "nothing"))


def library_of_torch(bench: Bench) -> Seen:
    c, cpp = library_calls(torch_library())
    return {"c": len(c), "cpp": len(cpp), "control": len(cpp)}


def runs_elsewhere(seen):
    compiled = [seen[name][1] for name in ("graphs", "lowered")]
    said = f"on rank 1: {'right' if seen['right'][1] else 'wrong'}, graphs by Dynamo and Inductor: {compiled}"
    yield part("in another process", seen["right"][1], said)
    yield part("compiles nothing", compiled == [0, 0], said)


@judge(package, counter=compiled_anew)
def package_runs_elsewhere(seen):
    yield from runs_elsewhere(seen)


@judge(package, counter=library_of_torch)
def package_calls_c_only(seen):
    if not seen["control"]:
        raise ValueError("the reader does not find torch's C++ in its control, libtorch_python.so")
    said = f"the library calls {seen['c']} functions aoti_torch_* and {seen['cpp']} of torch's C++"
    yield part("C functions", seen["c"] > 0, said)
    yield part("nothing of torch's C++", seen["cpp"] == 0, said)


def aot_compiled(bench: Bench) -> Seen:
    with tempfile.TemporaryDirectory() as place:
        return by_rank(bench.run(elsewhere, place, "aot_compile"))


@judge(aot_compiled, counter=compiled_anew)
def aot_compile_runs_elsewhere(seen):
    yield from runs_elsewhere(seen)


def precompiled(bench: Bench) -> Seen:
    if not hasattr(getattr(torch.compiler, "precompile", None), "capture"):
        raise NotThere("torch.compiler.precompile.capture is missing")
    with tempfile.TemporaryDirectory() as place:
        return by_rank(bench.run(elsewhere, place, "precompile"))


@judge(precompiled, counter=compiled_anew)
def precompile_runs_elsewhere(seen):
    yield from runs_elsewhere(seen)


# --- block by block ---

DEPTH, ROUNDS = 12, 10


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


def first_call_of(by_block) -> tuple[int, float]:
    """Compile a model of like blocks anew, whole or block by block: operators that the backend gets, and seconds."""
    layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
    backend = Graphs()
    with torch.no_grad():
        began = time.perf_counter()
        if by_block:
            for layer in layers:
                layer.compile(backend=backend)
            layers(torch.ones(2, 8))
        else:
            torch.compile(layers, backend=backend)(torch.ones(2, 8))
        took = time.perf_counter() - began
    torch._dynamo.reset()
    return sum(len(calls(graph)) for graph in backend.dynamo), took


def compared(first, second) -> Seen:
    taken, counted = {"blocks": [], "whole": []}, {}
    for i in range(ROUNDS + 1):
        for name, by_block in (("blocks", first), ("whole", second))[:: 1 if i % 2 else -1]:
            operators, took = first_call_of(by_block)
            if i:
                taken[name].append(took)
                counted[name] = operators
    verdict = timing.Times(taken).compare("blocks", "whole")
    return {
        "outcome": verdict.outcome,
        "said": str(verdict),
        "operators": [counted["blocks"], counted["whole"]],
    }


def blocks_or_whole(bench: Bench) -> Seen:
    return compared(True, False)


def blocks_and_blocks(bench: Bench) -> Seen:
    return compared(True, True)


@judge(blocks_or_whole, counter=blocks_and_blocks)
def regional(seen):
    blocks, whole = seen["operators"]
    said = f"operators compiled: {blocks} and {whole}; {seen['said']}"
    yield part("the operators of one block", blocks * DEPTH == whole, said)
    if blocks * DEPTH == whole and seen["outcome"] == "cannot tell":
        raise CannotTell("a quieter machine")
    yield part("takes less time", seen["outcome"] == "faster", said)


def glue(regions) -> Seen:
    """A stack of two like layers; on rank 1 Python prints between them."""
    backend = Graphs()
    rank = dist.get_rank()

    def layer(x):
        return funcol.all_reduce(x * 0.5, "sum", dist.group.WORLD)

    def stack(x, layer):
        y = layer(x)
        if rank == 1:
            print(end="")
        return layer(y)

    with torch.no_grad():
        if regions:
            y = stack(torch.ones(4), torch.compile(layer, backend=backend))
        else:
            y = torch.compile(stack, backend=backend)(torch.ones(4), layer)
        right = torch.equal(y + 0, torch.ones(4))
    torch._dynamo.reset()
    return {"graphs": [calls(graph) for graph in backend.dynamo], "right": right}


def glue_outside(bench: Bench) -> Seen:
    return by_rank(bench.run(glue, True))


def glue_inside(bench: Bench) -> Seen:
    return by_rank(bench.run(glue, False))


@judge(glue_outside, counter=glue_inside)
def regions_leave_the_rest(seen):
    said = f"graphs by rank: {[len(graphs) for graphs in seen['graphs']]}"
    same = seen["graphs"][0] == seen["graphs"][1] and len(seen["graphs"][0]) == 1
    yield part("leaves the ranks' graphs the same", same, said)
    yield part("right results", all(seen["right"]), said)

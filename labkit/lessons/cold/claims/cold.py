"""Cold and warm: who compiles, who waits for it, what can be made ahead, and what a warmup changes for requests."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from labkit import contract, lessons, torch_compat
from labkit.lessons.cold import program
from labkit.study.checks import (
    ENFORCED,
    HOLDS,
    READ,
    Bench,
    Result,
    Seen,
    cannot_tell,
    judging,
    probe,
    verdict,
)
from labkit.torch_compat import dynamo_reset, funcol

since = lessons.program("since")
REQUESTS = 50
MANY = 10  # what is more than this many times as long is no jitter


class Rectified(nn.Module):
    """A product, and what Inductor makes a kernel of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(program.WIDTH, program.WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).relu() + 1


@probe
def ahead(bench: Bench) -> Seen:
    """A module compiled ahead on rank 0, loaded and run on rank 1, with what the files hold; remote caches."""
    with tempfile.TemporaryDirectory() as folder:
        return bench.run(_ahead, folder)[1] | {"remote": torch_compat.remote_caches()}


def _ahead(folder: str) -> Seen:
    place = Path(folder)
    model, x, found = program.made(Rectified), program.batch(), Seen()
    with torch.no_grad():
        expected = model(x)
        if dist.get_rank() == 0:
            program.save_aot(model, x, place)
            program.save_package(model, x, place)
            if "precompile" in since.STORES:
                since.save_precompiled(_rectified, (x, model.weight), place)
        dist.barrier()
        if dist.get_rank() == 1:
            for name, load in (("precompiled", program.from_aot), ("packaged", program.from_package)):
                dynamo_reset()
                before = program.cache_counts()["miss"]
                with contract.compile_health() as health:
                    right = bool(torch.allclose(load(model, place)(x), expected, atol=1e-5))
                missed = program.cache_counts()["miss"] - before
                found[name] = {"right": right, "graphs": health.graphs + missed}
    paths = {"aot_compile": place / "model.aot", "precompile": place / "program.cache"}
    saved = {name: path.read_bytes() for name, path in paths.items() if path.exists()}
    found["binaries"] = {name: b"\x7fELF" in data for name, data in saved.items()}
    found["stable"] = {name: b"aoti_torch_" in data for name, data in saved.items()}
    mine = _calls(place / "model.pt2", place) if dist.get_rank() == 1 else ([], [])
    found["calls"], found["foreign"] = mine
    return found


def _rectified(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x @ weight).relu() + 1


def _calls(package: Path, folder: Path) -> tuple[list[str], list[str]]:
    """What a package's library calls of AOTInductor's C interface, and the names of torch's C++ that it needs."""
    with zipfile.ZipFile(package) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".so"))
        library = archive.extract(name, folder)
    asked = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, timeout=60
    )
    needed = [line.split()[-1] for line in asked.stdout.splitlines() if line.split()]
    stable = sorted({name for name in needed if name.startswith("aoti_torch")})
    return stable, sorted(name for name in needed if re.match(r"_ZN?K?\d*(2at|3c10|5torch)", name))


@probe
def together(bench: Bench) -> Seen:
    """One program with an all-reduce on two ranks, whose backend takes longer on rank 1 than on rank 0."""
    rows = bench.run(_together)
    return {name: [row[name] for row in rows] for name in rows[0]}


def _together() -> Seen:
    dynamo_reset()
    made: list[float] = []
    span: list[float] = []  # one clock for all processes of a machine

    def backend(graph: Any, inputs: Any) -> Any:
        span.append(time.perf_counter())
        time.sleep(0.8 if dist.get_rank() else 0.3)
        span.append(time.perf_counter())
        made.append(span[-1] - span[-2])
        return graph.forward

    run = torch.compile(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD), backend=backend)
    x = torch.ones(4)
    with torch.no_grad():
        torch.compile(torch.sin, backend="eager")(x)  # Dynamo's own start is not what is timed
        dist.barrier()
        began = time.perf_counter()
        run(x) + 0
        first = time.perf_counter() - began
    return {
        "graphs": len(made),
        "backend_s": sum(made),
        "first_s": first,
        "span": span,
    }


@probe
def served(bench: Bench) -> Seen:
    """The first requests of a compiled function, cold and after a warmup; and a warmup held to two budgets."""
    return bench.run(_served)[0]


def _served() -> Seen:
    exchange, found = contract.Exchange.connect("check-cold"), Seen()
    for way in ("warmed", "cold"):  # what a process pays once is paid in the warmup
        dynamo_reset()
        run = torch.compile(lambda x: (x * 2).sin(), backend="aot_eager")
        x, compiling, running, taken = torch.ones(8), 0, 0, []
        with torch.no_grad():
            if way == "warmed":
                contract.warm_up(exchange, functools.partial(run, x))
            for _ in range(REQUESTS):
                with contract.compile_health() as health:
                    began = time.perf_counter()
                    run(x)
                    taken.append(time.perf_counter() - began)
                compiling += bool(health.graphs)
                running += bool(health.regions)
        found[way] = {"compiling": compiling, "running": running}
        found[way] |= {"first_s": taken[0], "median_s": sorted(taken)[REQUESTS // 2]}
    model, x = program.made(program.Products), program.batch()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        program.save_aot(model, x, Path(folder))
        dynamo_reset()
        loaded = program.from_aot(model, Path(folder))
        with contract.compile_health() as health:
            began = time.perf_counter()
            y = loaded(x)
            first = time.perf_counter() - began
        right = bool(torch.allclose(y, model(x), atol=1e-5))
        found["ahead"] = {"compiling": int(bool(health.graphs)), "right": right, "first_s": first}
    for name, budget in (("generous", 600.0), ("tight", 0.1)):
        try:
            warm = contract.warm_up(
                exchange, lambda: None, prepare=lambda: time.sleep(0.3 * exchange.rank), budget=budget
            )
            found[name] = f"warm, skew {warm.skew:.1f} s"
        except contract.OverBudget as error:
            found[name] = str(error)
    return found


@judging(ahead, word=READ)
def there_are_remote_caches(seen: Seen) -> Result:
    """Inductor has settings for caches that machines share, and a client that talks to one."""
    remote = dict(seen["remote"])
    client = remote.pop("redis")
    on = [name for name, value in remote.items() if value]
    return verdict(
        "fx_graph_remote_cache" in remote and client,
        f"settings {', '.join(remote)}; on by default: {', '.join(on) or 'none'}; a client for Redis: "
        f"{'yes' if client else 'no'}; none was asked here",
    )


@judging(ahead)
def packages_run_elsewhere(seen: Seen) -> Result:
    """A package of AOTInductor's that one process made gives eager's numbers in another, which compiles no graph."""
    found = _elsewhere(seen["packaged"], f"made on rank 0, with {len(seen['calls'])} calls in its library")
    return found if seen["calls"] else verdict(False, found.measured)


def _elsewhere(loaded: Seen, made: str) -> Result:
    right = "right" if loaded["right"] else "wrong"
    said = f"{made}, loaded on rank 1: {right}, graphs compiled there {loaded['graphs']}"
    return verdict(loaded["right"] and not loaded["graphs"], said)


@judging(ahead)
def precompiled_functions_run_elsewhere(seen: Seen) -> Result:
    """What aot_compile saved in one process gives eager's numbers in another, which compiles no graph."""
    return _elsewhere(seen["precompiled"], "aot_compile on rank 0")


@judging(ahead)
def precompiled_binaries_use_the_stable_interface(seen: Seen) -> Result:
    """What precompile saves of a program with a kernel is a binary that calls torch by AOTInductor's C functions."""
    made = [name for name, binary in seen["binaries"].items() if binary]
    stable = bool(seen["calls"]) and not seen["foreign"] and all(seen["stable"][name] for name in made)
    files = ", ".join(f"{name} {'one' if binary else 'none'}" for name, binary in seen["binaries"].items())
    said = (
        f"AOTInductor's library calls {len(seen['calls'])} functions aoti_torch_*, and {len(seen['foreign'])} of "
        f"torch's C++; binaries of the kernel in the files: {files}"
    )
    if not made:  # no run refutes what is being worked on
        return cannot_tell("a torch whose precompile makes binaries", said)
    return verdict(stable, said)


LENGTHS = (3, 9, 6)


@probe
def parts(bench: Bench) -> Seen:
    """Requests of any length, cut, padded and noted by Python: the model alone compiled, and all of it."""
    return bench.run(_parts, ranks=1)[0]


def _parts() -> Seen:
    def block(x):
        return (x * 2).sin()

    def serve(x, model):
        rows = [model(nn.functional.pad(part, (0, 0, 0, 4 - len(part)))) for part in x.split(4)]
        print("", end="")  # a control plane says what it does
        return torch.cat(rows)[: len(x)]

    found: Seen = {}
    for way in ("block", "whole"):
        dynamo_reset()
        compiled = torch.compile(block if way == "block" else serve, backend="aot_eager")
        call, model = (serve, compiled) if way == "block" else (compiled, block)
        with torch.no_grad(), contract.compile_health() as health:
            made = [call(torch.ones(rows, 8), model) for rows in LENGTHS]
        right = all(torch.allclose(y, block(torch.ones(n, 8))) for y, n in zip(made, LENGTHS, strict=True))
        found[way] = {**health.counts(), "right": right}
    return found


@judging(parts)
def the_stable_part_compiles_once(seen: Seen) -> Result:
    """The part with fixed shapes, compiled alone, is one graph for all requests; all of it breaks and recompiles."""
    block, whole = seen["block"], seen["whole"]
    once = block == {"graphs": 1, "breaks": 0, "recompiles": 0, "right": True}
    said = f"requests of {LENGTHS} rows; the part compiled: {block}; all of it: {whole}"
    return verdict(once and whole["breaks"] > 0 and whole["recompiles"] > 0, said)


@judging(together)
def ranks_compile_at_the_same_time(seen: Seen) -> Result:
    """Ranks compile side by side, each for itself: the backend of one is at work while that of the other is."""
    starts, ends = ([span[i] for span in seen["span"]] for i in (0, -1))
    shared = min(ends) - max(starts)
    each = ", ".join(f"{end - start:.2f}" for start, end in zip(starts, ends, strict=True))
    return verdict(
        shared > 0 and all(n == 1 for n in seen["graphs"]),
        f"in its backend {each} s by rank, {max(shared, 0):.2f} s of it at the same time",
    )


@judging(together)
def peers_wait_for_a_compile(seen: Seen) -> Result:
    """While one rank compiles its peers wait in the first collective: all of them pay."""
    slowest = max(seen["backend_s"])
    quick = seen["backend_s"].index(min(seen["backend_s"]))
    return verdict(
        seen["first_s"][quick] >= slowest > 2 * min(seen["backend_s"]),
        f"rank {quick} took {min(seen['backend_s']):.2f} s in its backend and {seen['first_s'][quick]:.2f} s for its "
        f"first call, while its peer took {slowest:.2f} s",
    )


@probe
def once(bench: Bench) -> Seen:
    """What ranks with cache folders of their own compile by default, whose folders serve the other one, and whether a
    file that rank 0 compiled runs where it was sent."""
    with tempfile.TemporaryDirectory() as folder:
        sent, by_rank = bench.run(_send_one, folder)[1], bench.run(_by_folder, folder)
        return {"shipped": sent, **{name: [one[name] for one in by_rank] for name in by_rank[0]}}


def _by_folder(folder: str) -> Seen:
    """What Inductor looked up and compiled, with an empty folder, the one that the other rank filled, and an empty one;
    and in which processes its passes ran."""
    rank, passes, found = dist.get_rank(), [], Seen(process=os.getpid())
    model, x = program.made(program.Products), program.batch()

    def passed(graph: Any) -> None:
        passes.append(os.getpid())

    for name, place in (
        ("own", f"a{rank}"),
        ("other's", f"a{1 - rank}"),
        ("empty", f"b{rank}"),
        ("passes", ""),
    ):
        dynamo_reset()
        dist.barrier()
        before = program.cache_counts()
        setting = {"cpp.vec_isa_ok": True} | ({} if place else {"post_grad_custom_pre_pass": passed})
        with (
            mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(Path(folder) / (place or f"a{rank}"))),
            torch_compat.patched("inductor.config", **setting),
            torch.no_grad(),
        ):
            right = bool(torch.allclose(torch.compile(model)(x), model(x), atol=1e-5))
        looked = {end: n - before[end] for end, n in program.cache_counts().items()}
        found[name] = {**looked, "right": right}
    return found | {"passes": passes}


def _send_one(folder: str) -> bool:
    place, rank = Path(folder) / str(dist.get_rank()), dist.get_rank()
    place.mkdir()
    model, x = program.made(program.Products), program.batch()
    with torch.no_grad():
        if rank == 0:
            program.save_aot(model, x, place)
        data = program.ship((place / "model.aot").read_bytes() if rank == 0 else b"")
        (place / "model.aot").write_bytes(data)
        return bool(torch.allclose(program.from_aot(model, place)(x), model(x), atol=1e-5))


@judging(once)
def compiling_once_is_up_to_you(seen: Seen) -> Result:
    """By default every rank still compiles; sending one rank's result works, and is left to the program."""
    return verdict(
        all(map(_compiled, seen["own"])) and seen["shipped"],
        f"found compiled by default, by rank: {[one['hit'] for one in seen['own']]}; a file of aot_compile sent by "
        f"hand {'runs' if seen['shipped'] else 'does not run'} on rank 1",
    )


def _compiled(one: Seen) -> bool:
    return one["miss"] > 0 == one["hit"] and one["right"]


@judging(once)
def another_process_finds_it_in_the_cache(seen: Seen) -> Result:
    """What one process left in its cache folder another one finds, and does not compile as with an empty folder."""
    each = [seen[name] for name in ("own", "other's", "empty")]
    found = all(one["hit"] > 0 == one["miss"] and one["right"] for one in seen["other's"])
    said = ", ".join(str([f"{one['hit']}/{one['miss']}" for one in ranks]) for ranks in each)
    return verdict(
        found and all(map(_compiled, each[0] + each[2])),
        f"found/missed by rank, in an empty folder, in the one that the other filled, in an empty one: {said}",
    )


@judging(once)
def ranks_compile_where_they_run(seen: Seen) -> Result:
    """With the default backend each rank compiles, and Inductor's passes run in the process of the rank."""
    pairs = list(zip(seen["process"], seen["passes"], strict=True))
    own = [bool(passes) and set(passes) == {process} for process, passes in pairs]
    return verdict(
        all(own) and len(set(seen["process"])) == len(own) and all(map(_compiled, seen["own"])),
        f"found compiled, by rank: {[one['hit'] for one in seen['own']]}; Inductor's passes in the rank's own process: "
        f"{own}",
    )


@judging(served)
def a_warmup_takes_compiling_out_of_serving(seen: Seen) -> Result:
    """Of the first requests one compiles where nothing was warmed up, and none after a warmup: all run a graph."""
    cold, warm = seen["cold"], seen["warmed"]
    return verdict(
        cold["compiling"] == 1 and warm["compiling"] == 0 and warm["running"] == REQUESTS,
        f"requests that compile, of {REQUESTS}: {cold['compiling']} cold, {warm['compiling']} after a warmup, where "
        f"{warm['running']} run compiled code; the first took {cold['first_s'] * 1e3:.1f} ms and "
        f"{warm['first_s'] * 1e3:.2f} ms",
    )


@judging(served)
def serving_needs_preparation(seen: Seen) -> Result:
    """Unprepared, one request takes many times the others; after a warmup, or with a file made ahead, none does."""
    slow, prepared = a_cold_start_costs_compile_time(seen), a_warmup_or_a_file_made_ahead_will_do(seen)
    quick = 2 * max(seen[way]["first_s"] for way in ("warmed", "ahead")) < seen["cold"]["first_s"]
    ahead = f"{seen['ahead']['first_s'] * 1e3:.2f} ms"
    return verdict(
        slow.status == prepared.status == HOLDS and quick,
        f"{slow.measured}; {prepared.measured}, the first in {ahead}",
    )


@judging(served)
def a_warmup_or_a_file_made_ahead_will_do(seen: Seen) -> Result:
    """Without preparation the first request compiles; after a warmup, or with a file made ahead, none does."""
    warmed, ahead = a_warmup_takes_compiling_out_of_serving(seen), seen["ahead"]
    return verdict(
        warmed.status == HOLDS and not ahead["compiling"] and ahead["right"],
        f"{warmed.measured}; with a file of aot_compile {ahead['compiling']} compile, numbers "
        f"{'right' if ahead['right'] else 'wrong'}",
    )


@judging(served)
def a_cold_start_costs_compile_time(seen: Seen) -> Result:
    """The one request that compiles takes many times what a request takes in the warmed steady state."""
    cold, warm = seen["cold"], seen["warmed"]
    times = cold["first_s"] / warm["median_s"]
    return verdict(
        cold["compiling"] == 1 and warm["compiling"] == 0 and times > MANY,
        f"a small function, AOTAutograd without Inductor: cold {cold['first_s'] * 1e3:.1f} ms, {times:.0f} times the "
        "median after a warmup",
    )


@judging(served, word=ENFORCED)
def a_warmup_can_be_held_to_a_budget(seen: Seen) -> Result:
    """A warmup with a budget ends in an error that names the slowest rank, and passes where it is quick enough."""
    return verdict(
        seen["generous"].startswith("warm") and "rank 1 took longest" in seen["tight"],
        f"600 s: {seen['generous']}; 0.1 s: {seen['tight']}",
    )

"""What a fresh process does to be ready: each way on a rank, with torch's own phases of it, and the first requests."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit import torch_compat
from labkit.lessons.cold import program as cold_program
from labkit.torch_compat import CPU_CHECK

MACHINE, EAGER, COLD, DISK, ARTIFACTS = "this machine", "eager", "cold", "second process", "cache artifacts"
BUILD, AOT, AOTI = "built ahead", "AOT-precompiled", "AOTInductor"
BLOCKS, NESTED, SKEW, SHIPPED = "block by block", "nested region", "one rank cold", "once, and shipped"
FORMS = {
    EAGER: "not compiled",
    COLD: "every rank compiles, its caches empty",
    DISK: "the caches on disk that a first process left (FX graph and AOTAutograd)",
    ARTIFACTS: "empty caches, filled with what torch.compiler.save_cache_artifacts gave",
    AOT: "a function that aot_compile saved, loaded",
    AOTI: "a package of torch.export and AOTInductor, loaded",
    SKEW: "rank 0 finds its caches, the others do not",
    SHIPPED: "rank 0 compiles, and its cache folder goes to the others by broadcast",
    BLOCKS: "empty caches, each block compiled on its own",
    NESTED: "empty caches, the blocks marked as nested regions",
}
LOAD, DYNAMO, AUTOGRAD, INDUCTOR, CHECK, CPP = (
    "find and load",
    "Dynamo",
    "AOTAutograd",
    "Inductor",
    "CPU instruction check",
    "build and load C++",
)
RUN, SHIP = "run, or wait for a peer", "ship"
PHASES = (LOAD, DYNAMO, AUTOGRAD, INDUCTOR, CHECK, CPP, SHIP, RUN)
# the beginning of an event's name, and the phase that it is time of; another name is time of what it lies in
NAMES = (
    (LOAD, "inductor_codecache_torch_key CacheBase AOTAutogradCache FxGraphCache TritonBundler PyCodeCache"),
    (CHECK, CPU_CHECK),
    (CPP, "compile_file async_compile.wait CppCodeCache CppWrapperCodeCache"),
    (DYNAMO, "dynamo entire_frame_compile compile_attempt bytecode_tracing build_guards"),
    (AUTOGRAD, "backend_compile create_aot_dispatcher_function aot_collect_metadata"),
    (
        INDUCTOR,
        "compile_fx inductor_compile fx_codegen_and_compile _recursive_ GraphLowering Scheduler code_gen",
    ),
)

Event = tuple[float, str, str, int]


def phase_of(name: str, inside: str) -> str:
    """The phase of an event of torch's by its name; that of the event around it where the name says nothing.

    >>> phase_of("Scheduler.codegen", "Dynamo"), phase_of("gc", "Dynamo")
    ('Inductor', 'Dynamo')
    """
    return next((phase for phase, begins in NAMES if name.startswith(tuple(begins.split()))), inside)


def segments(
    events: Sequence[Event], marks: Sequence[tuple[float, str]], end: float, thread: int
) -> list[tuple[str, float, float]]:
    """One thread's time cut into phases: (phase, first second, last second), none overlapping, no second left out.

    marks: (time, phase) from which on time outside of every event counts as that phase, the first one the beginning.
    What other threads report is left out: this thread waits for them in an event of its own.

    >>> inner = [(2.0, "B", "compile_file", 0), (4.0, "E", "compile_file", 0)]
    >>> segments([(1.0, "B", "dynamo", 0), *inner, (5.0, "E", "dynamo", 0)], [(0.0, "run")], 6.0, thread=0)
    [('run', 0.0, 1.0), ('Dynamo', 1.0, 2.0), ('build and load C++', 2.0, 4.0), ('Dynamo', 4.0, 5.0), ('run', 5.0, 6.0)]
    """
    begin = marks[0][0]
    steps: list[tuple[float, int, str, str]] = [(t, 0, "mark", phase) for t, phase in marks]
    steps += [(t, 1, what, name) for t, what, name, who in events if who == thread and begin <= t <= end]
    steps.sort(key=lambda step: step[:2])  # stable: events of one moment stay in their order
    outside, stack, at = marks[0][1], list[tuple[str, str]](), begin
    found: list[tuple[str, float, float]] = []

    def until(t: float) -> None:
        nonlocal at
        phase = stack[-1][1] if stack else outside
        if t > at:
            if found and found[-1][0] == phase:
                found[-1] = (phase, found[-1][1], t)
            else:
                found.append((phase, at, t))
            at = t

    for t, _, what, name in steps:
        until(t)
        if what == "mark":
            outside = name
        elif what == "B":
            stack.append((name, phase_of(name, stack[-1][1] if stack else outside)))
        else:
            for i in range(len(stack) - 1, -1, -1):  # an end closes what began inside it as well
                if stack[i][0] == name:
                    del stack[i:]
                    break
    until(end)
    return found


def saved_artifacts() -> bytes:
    """What this process has put into its compile caches; empty where it has compiled nothing."""
    saved = torch.compiler.save_cache_artifacts()
    return b"" if saved is None else saved[0]


def own_caches(folder: Path, filled_from: Path) -> Path:
    """Give this process caches of its own, with what another folder holds, and return the folder.

    The reader's own caches are neither read nor written. It has to come before the first compile.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(filled_from, folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    # a package of AOTInductor is unpacked there, and stays if the rank is killed; beside, where no build is counted
    os.environ["TMPDIR"] = str(folder.parent)
    return folder


def probe(folder: str) -> dict[str, Any]:
    """What is done once on a machine: find out its vector instructions, by building a C++ program for each kind."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    began = time.perf_counter()
    torch_compat.probe_cpu()
    return {"seconds": time.perf_counter() - began, "builds": len(_built(place))}


def build(made: str) -> list[dict[str, Any]]:
    """Make the two kinds of files that are compiled ahead, on different ranks where there are two; nothing is run."""
    place, rank, world = Path(made), dist.get_rank(), dist.get_world_size()
    own_caches(place / f"building-{rank}", place / "machine")
    model, x = cold_program.made(place / "program", "Model"), cold_program.batch()
    jobs = ((AOTI, torch_compat.package, "model.pt2"), (AOT, torch_compat.precompile, "model.aot"))
    rows = []
    with torch.no_grad():
        for i, (form, make, name) in enumerate(jobs):
            if i % world == rank:
                began = time.perf_counter()
                make(model, (x,), str(place / name))
                seconds = time.perf_counter() - began
                rows.append({"form": form, "seconds": seconds, "bytes": (place / name).stat().st_size})
    return rows


def serve(form: str, made: str, requests: int) -> dict[str, Any]:
    """Become ready in one way and answer the first requests; times are seconds from a barrier on.

    `ready_s` goes to the end of the first request, `prepared_s` to its beginning; `segments` cut that time into phases.
    """
    place, rank = Path(made), dist.get_rank()
    warm = form == DISK or (form == SKEW and rank == 0)
    folder = own_caches(
        place / f"{form.replace(' ', '-')}-{rank}", place / (f"caches-{rank}" if warm else "machine")
    )
    model, x = cold_program.made(place / "program", "Model"), cold_program.batch()
    with torch.no_grad():
        expected = model(x) + 0
        before = _built(folder)
        dist.barrier()
        zero = time.time() - time.perf_counter()  # torch's events carry the time of day
        with torch_compat.compile_events() as events:
            began = time.perf_counter()
            call, marks, shipped = _prepare(form, place, folder, model, x)
            prepared = time.perf_counter()
            y = call(x) + 0
            ready = time.perf_counter()
        built = len(_built(folder) - before)
        taken = [ready - began]
        for _ in range(requests - 1):
            t = time.perf_counter()
            call(x) + 0
            taken.append(time.perf_counter() - t)
    counted = torch_compat.cache_counters()
    found = {
        "prepared_s": prepared - began, "ready_s": ready - began, "latency": taken, "builds": built,
        "hits": _count(counted, "hit"), "misses": _count(counted, "miss"),
        "bytes": shipped, "error": float((y - expected).abs().max()),
    }  # fmt: skip
    if form == COLD:  # what the ways behind it start from
        (place / f"artifacts-{rank}").write_bytes(saved_artifacts())
        found["bytes"] = (place / f"artifacts-{rank}").stat().st_size
        shutil.copytree(folder, place / f"caches-{rank}", dirs_exist_ok=True)
    events = [(t - zero, what, name, thread) for t, what, name, thread in events]
    spans = segments(events, [(began, LOAD), *marks, (prepared, RUN)], ready, threading.get_ident())
    found["segments"] = [(phase, a - began, b - began) for phase, a, b in spans]
    shutil.rmtree(folder, ignore_errors=True)
    return found


Marks = list[tuple[float, str]]


def _prepare(
    form: str, place: Path, folder: Path, model: Any, x: Any
) -> tuple[Callable[[Any], Any], Marks, int]:
    """A function that answers a request, the phases that began on the way to it, and bytes that were shipped."""
    rank, call = dist.get_rank(), model
    if form == ARTIFACTS:
        torch.compiler.load_cache_artifacts((place / f"artifacts-{rank}").read_bytes())
    if form == AOT:
        loaded = torch_compat.load_precompiled(str(place / "model.aot"))
        return lambda x: loaded(model, x), [], 0
    if form == AOTI:
        return torch_compat.load_package(str(place / "model.pt2")), [], 0
    if form == BLOCKS:
        for block in model.blocks:
            block.compile()
        return model, [], 0
    if form == NESTED:
        kind = type(model.blocks[0])
        kind.forward = torch.compiler.nested_compile_region(kind.forward)
    call = model if form == EAGER else torch.compile(model)
    if form != SHIPPED:
        return call, [], 0
    marks: Marks = [(time.perf_counter(), RUN)]
    # rank 0's first call has collectives in it: the others take part in them without compiling
    (call if rank == 0 else model)(x) + 0
    marks.append((time.perf_counter(), SHIP))
    data = ship(_packed(folder) if rank == 0 else b"")
    if rank:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(folder, filter="data")
    return call, marks, len(data)


def ship(data: bytes, source: int = 0) -> bytes:
    """Send bytes from one rank to all by broadcasts of its group: their number first, then themselves."""
    size = torch.tensor([len(data)])
    dist.broadcast(size, source)
    if not size:
        return b""
    if dist.get_rank() == source:
        box = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    else:
        box = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(box, source)
    return box.numpy().tobytes()


def _packed(folder: Path) -> bytes:
    box = io.BytesIO()
    with tarfile.open(fileobj=box, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    return box.getvalue()


def _built(folder: Path) -> set[str]:
    """The libraries in a cache folder: each is the outcome of one run of the C++ compiler."""
    return {path.name for path in folder.rglob("*.so")}


def _count(counters: dict[str, int], what: str) -> int:
    return sum(count for name, count in counters.items() if name.endswith(f"cache_{what}"))
